// FutexEvent: wakes one waiter, across threads or processes. It may be in private or shared memory; zeroed memory is a
// valid state.
//
// The waiter calls arm(), checks once more for work, then calls wait(). The notifier first publishes the work with a
// sequentially consistent store, then calls notify(). Either the notifier sees the armed event or the waiter sees the
// work, so no wake-up is lost. notify() without a waiter costs one load of a cached line.
#pragma once

#include <atomic>
#include <cstdint>

#include "esp/base/clock.h"

namespace esp::net {

class alignas(64) FutexEvent {
 public:
  // Call after publishing work with a seq_cst store.
  void notify() {
    // The first notifier disarms the event, so a burst of messages makes one system call.
    if (armed_.load(std::memory_order_seq_cst) != 0 && armed_.exchange(0, std::memory_order_seq_cst) != 0) wake();
  }
  // Wakes the waiter even if the event is not armed.
  void wake();

  uint32_t arm() {
    uint32_t ticket = notifications_.load(std::memory_order_seq_cst);
    armed_.store(1, std::memory_order_seq_cst);
    return ticket;
  }
  void disarm() { armed_.store(0, std::memory_order_relaxed); }
  // Returns after a notification since `arm` returned this ticket, or at the deadline.
  void wait(uint32_t ticket, Deadline deadline);

 private:
  std::atomic<uint32_t> notifications_{0};
  std::atomic<uint32_t> armed_{0};
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);

// Decides whether a wait yields the core or blocks. If only ranks of this job compete for the core, a yield is the
// fastest way to a peer's reply. If unrelated processes compete too, a yielding thread loses their time slices, while a
// blocked thread runs soon after its wake-up. Therefore, when a yield returns late, the next waits block immediately.
class YieldPolicy {
 public:
  // Yields the core. False: the caller should block instead.
  bool try_yield();

 private:
  int waits_to_skip_ = 0;
};

// Bounded spinning before a wait blocks. With more local ranks than cores, each spin yields the core instead of
// pausing, because a peer may need the core.
class SpinWait {
 public:
  explicit SpinWait(int num_ranks_here);
  // Spins once. Returns false when the caller should block instead.
  bool spin_once();
  void reset() { turns_ = 0; }

 private:
  bool oversubscribed_;
  YieldPolicy yield_;
  int turns_ = 0;
};

}  // namespace esp::net
