// One stage of a quantised collective: an all-to-all of byte ranges whose sizes are the same in every step
// (all_to_all_v: exactly these bytes are sent, without padding).
//
// All calls come from one thread. The communicator is not owned. The buffers must exist until `wait` has returned or
// the exchange is destroyed.
#pragma once

#include <vector>

#include "esp/comm/communicator.h"

namespace esp::sync {

class ByteExchange {
 public:
  explicit ByteExchange(comm::Communicator* members);  // null for a single rank
  ~ByteExchange();  // waits for an exchange in flight, up to the communicator's timeout
  ByteExchange(const ByteExchange&) = delete;

  // Sets the offset and size of the bytes for `peer`; until then they are empty.
  void set_send(int peer, size_t at, size_t bytes);
  void set_receive(int peer, size_t at, size_t bytes);

  bool is_single_rank() const { return sends_.size() == 1; }
  void start(const void* in, void* out);
  void wait(Deadline deadline);
  double waited_ms() const { return waited_ms_; }

 private:
  comm::Communicator* const members_;
  std::vector<size_t> sends_, sends_at_, receives_, receives_at_;  // [peer]: sizes and offsets in bytes
  Work work_;
  double waited_ms_ = 0;
};

}  // namespace esp::sync
