// Group calls, as in NCCL: calls are collected and then started together, also for several local ranks driven by one
// thread. Without it the first blocking call of the first rank would wait for a call the same thread has yet to make.
//
// A scope belongs to one thread. Communicators and buffers outlive `end`.
#pragma once

#include <vector>

#include "esp/comm/communicator.h"

namespace esp::comm {

class GroupScope {
 public:
  void add(Communicator& communicator, const Call& call);
  bool empty() const { return sets_.empty(); }

  // Starts every communicator's set. The Works are by communicator, in order of first use.
  std::vector<Work> start();
  // Starts and waits. All sets are waited for; the first error is thrown then.
  void end(Deadline deadline);

 private:
  struct Set {
    Communicator* communicator;
    std::vector<Call> calls;
  };
  std::vector<Set> sets_;
};

}  // namespace esp::comm
