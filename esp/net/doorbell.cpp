#include "esp/net/doorbell.h"

#include <sched.h>

#include <thread>

#include "esp/base/futex.h"

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

void Doorbell::wake() {
  rings_.fetch_add(1, std::memory_order_seq_cst);
  wake_all(rings_);
}

void Doorbell::wait(uint32_t ticket, Deadline deadline) {
  if (rings_.load(std::memory_order_seq_cst) == ticket) sleep_on(rings_, ticket, deadline);
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
