#include "esp/comm/fused/shm_barrier.h"

#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/base/futex.h"

namespace esp::comm {
namespace {

constexpr int kBusyPolls = 64;              // polls without a pause; enough for a peer on a near core
constexpr int kSpinPolls = 4000;            // polls with a pause instruction; about 100 µs
constexpr int kOversubscribedPolls = 2000;  // polls of a latency probe when ranks outnumber cores; a few microseconds
constexpr int kYieldsPerClockCheck = 16;    // number of yields between two reads of the clock
constexpr auto kYieldFor = std::chrono::milliseconds(2);
constexpr auto kSleepSlice = std::chrono::milliseconds(10);

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

int num_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

int ranks_on_host(const net::World& world, const net::Group& group) {
  int member = group.members[0], count = 0;
  for (int peer = 0; peer < static_cast<int>(world.peers.size()); ++peer) count += world.same_host(member, peer);
  return std::max(count, group.size());
}

}  // namespace

ShmBarrier::ShmBarrier(const net::World& world, const net::Group& group, std::byte* base, const ShmLayout& layout)
    : world_(world), group_(group), oversubscribed_(ranks_on_host(world, group) > num_cores()) {
  for (int member = 0; member < group.size(); ++member)
    pages_.push_back(reinterpret_cast<ShmControlPage*>(base + static_cast<size_t>(member) * layout.rank_bytes));
  mine_ = pages_[static_cast<size_t>(group.rank)];
  syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0);
}

void ShmBarrier::wait_for_peers(FlagKind kind, uint32_t value, Deadline deadline) {
  for (int i = 1; i < size(); ++i) wait_for((rank() + i) % size(), kind, value, deadline);
}

void ShmBarrier::wait_slow(int peer, FlagKind kind, uint32_t value, Deadline deadline) {
  ++num_waits_;
  Flag& flag = flag_of(page(peer), kind, value);
  if (!oversubscribed_) {
    for (int poll = 0; poll < kBusyPolls; ++poll)
      if (reached(flag, value)) return;
    for (int poll = 0; poll < kSpinPolls; ++poll) {
      if (reached(flag, value)) return;
      pause();
    }
  }
  // From here on the peers are checked too; a failed peer takes precedence over data that may still arrive. seen_epoch
  // starts at 0 in every wait, because a peer may have left during the previous wait.
  uint32_t seen_epoch = 0;
  auto sleep_from = Clock::time_point::max();
  for (int turn = 0;; ++turn) {
    check_peers(peer, flag, value, seen_epoch);
    if (reached(flag, value)) return;
    if (turn % kYieldsPerClockCheck == 0) {
      auto now = Clock::now();
      if (now >= deadline.when()) throw_timeout(kind, value);
      if (turn == 0) sleep_from = now + kYieldFor;
      if (now >= sleep_from) break;
    }
    if (!yield_.try_yield()) break;
  }
  while (!reached(flag, value)) {
    check_peers(peer, flag, value, seen_epoch);
    if (deadline.passed()) throw_timeout(kind, value);
    sleep(peer, flag, value, deadline.earlier(kSleepSlice));
  }
}

void ShmBarrier::sleep(int peer, Flag& flag, uint32_t value, Deadline deadline) {
  Flag& sleepers = page(peer).sleepers.value;
  sleepers.fetch_add(1, std::memory_order_seq_cst);
  syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0);
  uint32_t seen = flag.load(std::memory_order_acquire);
  if (static_cast<int32_t>(seen - value) < 0) sleep_on(flag, seen, deadline);
  sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

void ShmBarrier::wake(Flag& flag) {
  wake_all(flag);
}

void ShmBarrier::check_peers(int peer, const Flag& flag, uint32_t value, uint32_t& seen_epoch) {
  uint32_t epoch = world_.peer_status->epoch();
  if (epoch == seen_epoch) return;
  world_.peer_status->check(group_.id, group_.members);
  // A peer that exited normally announced all its steps before it left, so a step that is missing now will never
  // arrive.
  if (world_.peer_status->has_left(world_rank(peer)) && !reached(flag, value))
    throw world_.peer_status->peer_left_error(world_rank(peer));
  seen_epoch = epoch;
}

void ShmBarrier::throw_timeout(FlagKind kind, uint32_t value) const {
  std::string late;
  int first = -1;
  for (int member = 0; member < size(); ++member) {
    if (reached(flag_of(page(member), kind, value), value) || member == rank()) continue;
    if (first < 0) first = world_rank(member);
    late += fmt::format("{}{}", late.empty() ? "" : ", ", world_rank(member));
  }
  throw CommError(CommError::Kind::timeout, first,
                  fmt::format("rank {} timed out waiting for rank {} ({})", world_rank(rank()), late,
                              kind == FlagKind::step ? "entered the call and stalled" : "never entered the call"));
}

double ShmBarrier::cache_line_ns(int peer, uint32_t call_number, bool first, Deadline deadline) {
  constexpr uint32_t kGroups = 3, kRounds = 4;
  Flag &my = mine_->echo.value, &its = page(peer).echo.value;
  uint32_t round = call_number * kGroups * kRounds;
  uint32_t seen_epoch = 0;
  double best = 1e9;  // minimum over groups of rounds, because scheduling may disturb some of them
  for (uint32_t group = 0; group < kGroups; ++group) {
    auto start = Clock::now();
    for (uint32_t i = 0; i < kRounds; ++i) {
      ++round;
      if (first) my.store(round, std::memory_order_release);
      for (int polls = 0; !reached(its, round); ++polls) {
        if (polls < (oversubscribed_ ? kOversubscribedPolls : kSpinPolls)) continue;
        check_peers(peer, its, round, seen_epoch);
        if (deadline.passed()) throw_timeout(FlagKind::step, mine_->step.value.load(std::memory_order_relaxed) + 1);
        sched_yield();
      }
      if (!first) my.store(round, std::memory_order_release);
    }
    best = std::min(best, std::chrono::duration<double, std::nano>(Clock::now() - start).count() / (2 * kRounds));
  }
  return best;
}

}  // namespace esp::comm
