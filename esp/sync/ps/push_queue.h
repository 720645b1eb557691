// Push queue (P3, Jayarajan et al. 2019; ByteScheduler, Peng et al. 2019): selects the next partition to send among
// those that are ready: the one that forward needs first, or the first that was ready, as the credit allows.
//
// A partition takes credit when it is sent and returns it when it is acknowledged; one may always be in flight. One
// thread. Real workers and the virtual-time model use the same queue.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace esp::sync {

struct ReadyPush {
  int partition = 0;
  int priority = 0;  // smaller first; ties by partition index
  int64_t bytes = 0;
};

class PushQueue {
 public:
  PushQueue(bool by_priority, int64_t credit_bytes) : by_priority_(by_priority), credit_(credit_bytes) {}

  void add(const ReadyPush& push) { ready_.push_back(push); }
  std::optional<ReadyPush> next();  // takes credit; none: nothing is ready, or no credit is left
  void acknowledged(int64_t bytes);
  bool empty() const { return ready_.empty(); }
  int64_t in_flight() const { return in_flight_; }

 private:
  const bool by_priority_;
  const int64_t credit_;
  std::vector<ReadyPush> ready_;  // in order of arrival
  int64_t in_flight_ = 0;         // bytes in flight
};

}  // namespace esp::sync
