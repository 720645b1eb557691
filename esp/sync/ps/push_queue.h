// Push queue (P3, Jayarajan et al. 2019; ByteScheduler, Peng et al. 2019): selects which of the ready partitions is
// sent next. With priorities this is the partition that forward needs first; otherwise the one that was ready first.
// The credit limits the bytes in flight.
//
// A partition takes credit when it is sent and returns it when it is acknowledged. One partition may always be in
// flight, even if it is larger than the credit. All calls come from one thread. Real workers and the virtual-time model
// use this queue.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace esp::sync {

struct ReadyPush {
  int partition = 0;
  int priority = 0;  // a smaller number is sent first; on a tie the lower partition index
  int64_t bytes = 0;
};

class PushQueue {
 public:
  PushQueue(bool by_priority, int64_t credit_bytes) : by_priority_(by_priority), credit_(credit_bytes) {}

  void add(const ReadyPush& push) { ready_.push_back(push); }
  // selects a partition and takes its credit; nullopt: none is ready, or the credit is used up
  std::optional<ReadyPush> next();
  void acknowledged(int64_t bytes);
  bool empty() const { return ready_.empty(); }
  int64_t in_flight() const { return in_flight_; }

 private:
  const bool by_priority_;
  const int64_t credit_;
  std::vector<ReadyPush> ready_;  // ready partitions, in the order in which they became ready
  int64_t in_flight_ = 0;         // bytes in flight
};

}  // namespace esp::sync
