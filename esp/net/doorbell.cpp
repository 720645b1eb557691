#include "esp/net/doorbell.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <thread>

namespace esp::net {
namespace {

constexpr int kPauses = 4000;      // about 50 µs: longer than a wake-up costs, shorter than a time slice
constexpr int kCrowdedYields = 4;  // each lets every runnable peer of this core go first
constexpr auto kLate = std::chrono::milliseconds(1);  // longer than a peer computes between two messages, as a rule
constexpr int kSkippedWaits = 100;                    // each costs some microseconds, a sleep and a wake-up

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

// Not FUTEX_PRIVATE: the word may lie in memory shared by processes.
void Doorbell::wake() {
  rings_.fetch_add(1, std::memory_order_seq_cst);
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&rings_), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Doorbell::wait(uint32_t ticket, Deadline deadline) {
  auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline.left()).count();
  if (left <= 0 || rings_.load(std::memory_order_seq_cst) != ticket) return;
  timespec timeout{static_cast<time_t>(left / 1'000'000'000), static_cast<long>(left % 1'000'000'000)};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&rings_), FUTEX_WAIT, ticket, &timeout, nullptr, 0);
}

bool Yield::give() {
  if (waits_to_skip_ > 0) {
    --waits_to_skip_;
    return false;
  }
  const auto before = Clock::now();
  sched_yield();
  if (Clock::now() - before <= kLate) return true;
  waits_to_skip_ = kSkippedWaits;
  return false;
}

Spin::Spin(int num_ranks_here) : crowded_(num_ranks_here > static_cast<int>(std::thread::hardware_concurrency())) {}

bool Spin::again() {
  if (crowded_) {
    if (turns_ >= kCrowdedYields || !yield_.give()) return false;
  } else {
    if (turns_ >= kPauses) return false;
    pause();
  }
  ++turns_;
  return true;
}

}  // namespace esp::net
