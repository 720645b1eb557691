#include "esp/net/futex_event.h"

#include <sched.h>

#include <thread>

#include "esp/base/futex.h"

namespace esp::net {
namespace {

constexpr int kPauses = 4000;  // about 50 µs: longer than a futex wake-up, shorter than a scheduler time slice
// Number of yields before a wait blocks, on a host with more ranks than cores. Each yield first runs the other runnable
// threads of this core.
constexpr int kOversubscribedYields = 4;
constexpr auto kLate = std::chrono::milliseconds(1);  // a yield that took longer ran an unrelated process, not a peer
// Number of waits that block without yielding after a late yield. Each costs a few microseconds for sleep and wake-up.
constexpr int kSkippedWaits = 100;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

void FutexEvent::wake() {
  notifications_.fetch_add(1, std::memory_order_seq_cst);
  wake_all(notifications_);
}

void FutexEvent::wait(uint32_t ticket, Deadline deadline) {
  if (notifications_.load(std::memory_order_seq_cst) == ticket) sleep_on(notifications_, ticket, deadline);
}

bool YieldPolicy::try_yield() {
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

SpinWait::SpinWait(int num_ranks_here)
    : oversubscribed_(num_ranks_here > static_cast<int>(std::thread::hardware_concurrency())) {}

bool SpinWait::spin_once() {
  if (oversubscribed_) {
    if (turns_ >= kOversubscribedYields || !yield_.try_yield()) return false;
  } else {
    if (turns_ >= kPauses) return false;
    pause();
  }
  ++turns_;
  return true;
}

}  // namespace esp::net
