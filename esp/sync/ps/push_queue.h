// Which partition leaves next (P3, Jayarajan et al. 2019; ByteScheduler, Peng et al. 2019): of those that are ready the
// one that forward needs first, or the one that was ready first; as many as the credit allows.
//
// A partition takes credit when it leaves and gives it back when it is acknowledged; one may always be under way. One
// thread. The same queue schedules real pushes and those of virtual time.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace esp::sync {

struct ReadyPush {
  int partition = 0;
  int priority = 0;  // smaller first; ties by partition
  int64_t bytes = 0;
};

class PushQueue {
 public:
  PushQueue(bool by_priority, int64_t credit_bytes) : by_priority_(by_priority), credit_(credit_bytes) {}

  void add(const ReadyPush& push) { ready_.push_back(push); }
  std::optional<ReadyPush> next();  // takes credit; none: nothing is ready, or no credit is left
  void acknowledged(int64_t bytes);
  bool empty() const { return ready_.empty(); }
  int64_t under_way() const { return under_way_; }

 private:
  const bool by_priority_;
  const int64_t credit_;
  std::vector<ReadyPush> ready_;  // as they came
  int64_t under_way_ = 0;         // bytes
};

}  // namespace esp::sync
