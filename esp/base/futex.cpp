#include "esp/base/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <ctime>

namespace esp {
namespace {

// Not FUTEX_PRIVATE: the word may be in memory shared between processes.
void call(const std::atomic<uint32_t>& word, int what, uint32_t value, const timespec* longest) {
  syscall(SYS_futex, reinterpret_cast<const uint32_t*>(&word), what, value, longest, nullptr, 0);
}

}  // namespace

void sleep_on(const std::atomic<uint32_t>& word, uint32_t value) {
  call(word, FUTEX_WAIT, value, nullptr);
}

void sleep_on(const std::atomic<uint32_t>& word, uint32_t value, Deadline deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline.left()).count();
  if (left <= 0) return;
  const timespec longest{static_cast<time_t>(left / 1'000'000'000), static_cast<long>(left % 1'000'000'000)};
  call(word, FUTEX_WAIT, value, &longest);
}

void wake_all(const std::atomic<uint32_t>& word) {
  call(word, FUTEX_WAKE, INT_MAX, nullptr);
}

}  // namespace esp
