// One stage of a quantised collective: parcels of bytes from each member of a group to each other, of sizes that stay
// the same from step to step (all_to_all_v: exactly these bytes are sent, no padding).
//
// One thread. The communicator is lent; buffers must stay until `wait` has returned or the exchange is gone.
#pragma once

#include <vector>

#include "esp/comm/communicator.h"

namespace esp::sync {

class Exchange {
 public:
  explicit Exchange(comm::Communicator* members);  // null: this rank is alone
  ~Exchange();                                     // waits for what was started; the communicator bounds that
  Exchange(const Exchange&) = delete;

  // Where in the buffers a peer's parcels lie. None until said.
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
