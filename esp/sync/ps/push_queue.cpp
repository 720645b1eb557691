#include "esp/sync/ps/push_queue.h"

#include <algorithm>

#include "esp/base/check.h"

namespace esp::sync {

std::optional<ReadyPush> PushQueue::next() {
  if (ready_.empty()) return {};
  auto best = ready_.begin();
  if (by_priority_)
    best = std::min_element(ready_.begin(), ready_.end(), [](const ReadyPush& a, const ReadyPush& b) {
      return a.priority != b.priority ? a.priority < b.priority : a.partition < b.partition;
    });
  if (in_flight_ > 0 && in_flight_ + best->bytes > credit_) return {};
  const ReadyPush chosen = *best;
  ready_.erase(best);
  in_flight_ += chosen.bytes;
  return chosen;
}

void PushQueue::acknowledged(int64_t bytes) {
  ESP_CHECK(bytes <= in_flight_, "push queue: got an acknowledgement of {} bytes; {} bytes are in flight", bytes,
            in_flight_);
  in_flight_ -= bytes;
}

}  // namespace esp::sync
