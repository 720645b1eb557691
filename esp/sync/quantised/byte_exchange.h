// One stage of a quantised collective: an all-to-all of byte ranges whose sizes are the same in every step
// (all_to_all_v: exactly these bytes are sent, no padding).
//
// One thread. The communicator is borrowed; buffers must exist until `wait` has returned or the exchange is destroyed.
#pragma once

#include <vector>

#include "esp/comm/communicator.h"

namespace esp::sync {

class ByteExchange {
 public:
  explicit ByteExchange(comm::Communicator* members);  // null: one rank
  ~ByteExchange();                                     // waits for what was started, up to the communicator's timeout
  ByteExchange(const ByteExchange&) = delete;

  // Offsets and sizes per peer. Empty until set.
  void set_send(int peer, size_t at, size_t bytes);
  void set_receive(int peer, size_t at, size_t bytes);

  bool alone() const { return sends_.size() == 1; }
  void start(const void* in, void* out);
  void wait(Deadline deadline);
  double waited_ms() const { return waited_ms_; }

 private:
  comm::Communicator* const members_;
  std::vector<size_t> sends_, sends_at_, receives_, receives_at_;  // by peer
  Work work_;
  double waited_ms_ = 0;
};

}  // namespace esp::sync
