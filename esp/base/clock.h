// Monotonic time and deadlines. Every wait takes a Deadline.
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

// An absolute point in time for a timeout. Pass it unchanged through nested waits, so that all of them share one limit.
class Deadline {
 public:
  static Deadline after(Duration duration) { return Deadline(Clock::now() + duration); }
  static Deadline after_ms(int64_t milliseconds) { return after(std::chrono::milliseconds(milliseconds)); }
  static Deadline at(Clock::time_point when) { return Deadline(when); }

  Clock::time_point when() const { return when_; }
  bool passed() const { return Clock::now() >= when_; }
  Duration left() const { return std::max(Duration::zero(), when_ - Clock::now()); }
  // Remaining time for poll and epoll_wait, rounded up: a wait that returned early would be repeated in a busy loop.
  int left_ms() const { return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left()).count()); }
  Deadline earlier(Duration duration) const { return Deadline(std::min(when_, Clock::now() + duration)); }

 private:
  explicit Deadline(Clock::time_point when) : when_(when) {}
  Clock::time_point when_;
};

}  // namespace esp
