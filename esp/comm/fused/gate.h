// The gate: how ranks of one host announce and wait.
//
// A wait spins briefly (not at all when ranks outnumber cores), then yields while that is quick, then sleeps on a futex
// in short slices. All along it watches Fate and, once past spinning, the deadline. A sleeper counts itself on the page
// of the rank it waits for; the announcing side reads that count with a plain load after a plain store, which would
// miss a sleeper on the point of falling asleep: the sleeper orders both sides with one expedited membarrier, so that
// announcing stays cheap. Where the kernel has none, slices are what bounds the delay. One thread drives a gate.
#pragma once

#include <cstdint>
#include <vector>

#include "esp/base/clock.h"
#include "esp/comm/fused/board.h"
#include "esp/net/doorbell.h"
#include "esp/net/world.h"

namespace esp::comm {

class Gate {
 public:
  Gate(const net::World& world, const net::Group& group, std::byte* base, const BoardLayout& layout);

  int rank() const { return group_.rank; }
  int size() const { return group_.size(); }
  int world_rank(int member) const { return group_.members[static_cast<size_t>(member)]; }
  bool crowded() const { return crowded_; }  // more ranks on this host than cores

  BoardPage& page(int member) const { return *pages_[static_cast<size_t>(member)]; }
  BoardPage& mine() const { return *mine_; }
  std::byte* at(int member, size_t offset) const {
    return reinterpret_cast<std::byte*>(pages_[static_cast<size_t>(member)]) + offset;
  }

  // Stores `value` in a flag of this rank's page and wakes who sleeps on it.
  void announce(Flag& flag, uint32_t value) {
    flag.store(value, std::memory_order_release);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (mine_->sleepers.value.load(std::memory_order_relaxed) != 0) wake(flag);
  }

  // Which flag of a page is awaited: that a call was entered, or a step done.
  enum class Kind { call, step };
  static Flag& flag_of(BoardPage& page, Kind kind, uint32_t value) {
    return kind == Kind::step ? page.step.value : page.header[value % BoardPage::kCalls].call;
  }
  bool has_entered(int peer, uint32_t call_number) const {
    return reached(flag_of(page(peer), Kind::call, call_number), call_number);
  }

  void await(int peer, Kind kind, uint32_t value, Deadline deadline) {
    if (!reached(flag_of(page(peer), kind, value), value)) [[unlikely]]
      await_slow(peer, kind, value, deadline);
  }
  void await_all(Kind kind, uint32_t value, Deadline deadline);

  // Nanoseconds one cache line takes from this core to member `peer`'s. Both sides call it at once, one of them first,
  // with the number of the call they are in.
  double hand_over_ns(int peer, uint32_t call_number, bool first, Deadline deadline);

  uint64_t num_waits() const { return num_waits_; }

 private:
  void await_slow(int peer, Kind kind, uint32_t value, Deadline deadline);
  void sleep(int peer, Flag& flag, uint32_t value, Deadline deadline);
  void wake(Flag& flag);
  void check_fate(int peer, const Flag& flag, uint32_t value, uint32_t& seen_epoch);
  [[noreturn]] void give_up(Kind kind, uint32_t value) const;

  const net::World& world_;
  const net::Group group_;
  std::vector<BoardPage*> pages_;
  BoardPage* mine_;
  bool crowded_;
  net::Yield yield_;
  uint64_t num_waits_ = 0;
};

}  // namespace esp::comm
