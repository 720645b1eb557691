// Doorbell: wakes one sleeper, across threads or processes. Lives in ordinary or in shared memory; all zero is ready.
//
// The sleeper arms it, looks once more whether there is work, then waits. A ringer first publishes the work with a
// sequentially consistent store and then rings: either the ringer sees the bell armed or the sleeper sees the work, so
// no wake-up is lost, and ringing a bell nobody waits at costs one load of a line that stays in the cache.
#pragma once

#include <atomic>
#include <cstdint>

#include "esp/base/clock.h"

namespace esp::net {

class alignas(64) Doorbell {
 public:
  // For work published with a seq_cst store.
  void ring() {
    // Taken down by the first who sees it, so that a burst of messages makes one system call.
    if (armed_.load(std::memory_order_seq_cst) != 0 && armed_.exchange(0, std::memory_order_seq_cst) != 0) wake();
  }
  // Whether or not anybody is known to wait.
  void wake();

  uint32_t arm() {
    uint32_t ticket = rings_.load(std::memory_order_seq_cst);
    armed_.store(1, std::memory_order_seq_cst);
    return ticket;
  }
  void disarm() { armed_.store(0, std::memory_order_relaxed); }
  // Until rung since `arm` returned this ticket, or the deadline.
  void wait(uint32_t ticket, Deadline deadline);

 private:
  std::atomic<uint32_t> rings_{0};
  std::atomic<uint32_t> armed_{0};
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);

// Gives the core to others of its queue while that is the quickest way to a peer's answer. Where strangers compute,
// whoever yields waits out their time slices, and whoever sleeps is run soon after being woken: so once a yield has
// come back late, the next waits sleep at once.
class Yield {
 public:
  // False: block instead.
  bool give();

 private:
  int waits_to_skip_ = 0;
};

// Bounded spinning: how often a wait looks before it blocks, and what it does between two looks. More ranks than cores:
// the core is worth more to a peer, so it is given away at once.
class Spin {
 public:
  explicit Spin(int num_ranks_here);
  // False once it is time to block.
  bool again();
  void reset() { turns_ = 0; }

 private:
  bool crowded_;
  Yield yield_;
  int turns_ = 0;
};

}  // namespace esp::net
