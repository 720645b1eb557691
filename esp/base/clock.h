// Time: a monotonic now, and deadlines that every wait takes.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace esp {

using Clock = std::chrono::steady_clock;
using Duration = Clock::duration;

inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

// A point in time by which something must have happened. Pass it down unchanged: a wait made of many waits has one.
class Deadline {
 public:
  static Deadline after(Duration duration) { return Deadline(Clock::now() + duration); }
  static Deadline after_ms(int64_t milliseconds) { return after(std::chrono::milliseconds(milliseconds)); }
  static Deadline at(Clock::time_point when) { return Deadline(when); }

  Clock::time_point when() const { return when_; }
  bool passed() const { return Clock::now() >= when_; }
  Duration left() const { return std::max(Duration::zero(), when_ - Clock::now()); }
  // For poll and epoll_wait: rounded up so that a wait never returns early and spins.
  int left_ms() const { return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left()).count()); }
  Deadline earlier(Duration duration) const { return Deadline(std::min(when_, Clock::now() + duration)); }

 private:
  explicit Deadline(Clock::time_point when) : when_(when) {}
  Clock::time_point when_;
};

}  // namespace esp
