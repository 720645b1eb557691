// Group calls, as in NCCL: calls are collected and then started together. One thread can thus drive several local
// ranks. Without a group, the first blocking call of the first rank would wait for a call that the same thread makes
// later.
//
// A scope belongs to one thread. Communicators and buffers must outlive `end`.
#pragma once

#include <vector>

#include "esp/comm/communicator.h"

namespace esp::comm {

class GroupScope {
 public:
  void add(Communicator& communicator, const Call& call);
  bool empty() const { return sets_.empty(); }

  // Starts the collected calls of every communicator. Returns one Work per communicator, in order of first use.
  std::vector<Work> start();
  // Starts all calls and waits for all of them, then throws the first error.
  void end(Deadline deadline);

 private:
  struct Set {
    Communicator* communicator;
    std::vector<Call> calls;
  };
  std::vector<Set> sets_;
};

}  // namespace esp::comm
