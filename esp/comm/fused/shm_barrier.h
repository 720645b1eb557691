// Shared-memory barrier: how the ranks of one host announce progress and wait for each other.
//
// A wait spins briefly (not at all when ranks outnumber cores), then yields while yields return fast, then sleeps on a
// futex in short slices. Meanwhile it checks for failed peers and, after spinning, the deadline. A sleeping rank
// increments a counter on the page of the rank it waits for. The announcing rank reads this counter with a plain load
// after a plain store, which could miss a rank that is about to sleep. Therefore the sleeping rank orders both sides
// with one expedited membarrier, and announcing stays cheap. On Linux versions without membarrier the slice length
// bounds the delay. Each rank uses its barrier from one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "esp/base/clock.h"
#include "esp/comm/fused/shm_control_block.h"
#include "esp/net/futex_event.h"
#include "esp/net/world.h"

namespace esp::comm {

class ShmBarrier {
 public:
  ShmBarrier(const net::World& world, const net::Group& group, std::byte* base, const ShmLayout& layout);

  int rank() const { return group_.rank; }
  int size() const { return group_.size(); }
  int world_rank(int member) const { return group_.members[static_cast<size_t>(member)]; }
  bool oversubscribed() const { return oversubscribed_; }  // true if this host has more ranks than cores

  ShmControlPage& page(int member) const { return *pages_[static_cast<size_t>(member)]; }
  ShmControlPage& mine() const { return *mine_; }
  std::byte* at(int member, size_t offset) const {
    return reinterpret_cast<std::byte*>(pages_[static_cast<size_t>(member)]) + offset;
  }

  // Stores `value` in a flag of this rank's page and wakes the ranks that sleep on the page.
  void announce(Flag& flag, uint32_t value) {
    flag.store(value, std::memory_order_release);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (mine_->sleepers.value.load(std::memory_order_relaxed) != 0) wake(flag);
  }

  // The flag to wait for. `call`: the peer entered the call. `step`: the peer finished a pipeline step.
  enum class FlagKind { call, step };
  static Flag& flag_of(ShmControlPage& page, FlagKind kind, uint32_t value) {
    return kind == FlagKind::step ? page.step.value : page.header[value % ShmControlPage::kCalls].call;
  }
  bool has_entered(int peer, uint32_t call_number) const {
    return reached(flag_of(page(peer), FlagKind::call, call_number), call_number);
  }

  void wait_for(int peer, FlagKind kind, uint32_t value, Deadline deadline) {
    if (!reached(flag_of(page(peer), kind, value), value)) [[unlikely]]
      wait_slow(peer, kind, value, deadline);
  }
  void wait_for_peers(FlagKind kind, uint32_t value, Deadline deadline);

  // Measures the time in ns to transfer one cache line between this core and the core of `peer`. Both ranks call it
  // together, with the number of their current call; one of them passes `first` = true.
  double cache_line_ns(int peer, uint32_t call_number, bool first, Deadline deadline);

  uint64_t num_waits() const { return num_waits_; }

 private:
  void wait_slow(int peer, FlagKind kind, uint32_t value, Deadline deadline);
  void sleep(int peer, Flag& flag, uint32_t value, Deadline deadline);
  void wake(Flag& flag);
  void check_peers(int peer, const Flag& flag, uint32_t value, uint32_t& seen_epoch);
  [[noreturn]] void throw_timeout(FlagKind kind, uint32_t value) const;

  const net::World& world_;
  const net::Group group_;
  std::vector<ShmControlPage*> pages_;
  ShmControlPage* mine_;
  bool oversubscribed_;
  net::YieldPolicy yield_;
  uint64_t num_waits_ = 0;
};

}  // namespace esp::comm
