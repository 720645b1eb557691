// Selects how blocks are written (cached or streaming stores). The choice is measured again at regular intervals,
// because virtual machines move ranks between cores.
//
// To measure, rank 0 and a rank on another core pass a cache line back and forth during a large call (a probe). If the
// two ranks share a core, the probe measures scheduling instead; the previous result then stays valid for a while.
#include <sched.h>

#include "esp/comm/fused/fused_collectives.h"

namespace esp::comm {
namespace {

// Bits of `choice` in rank 0's header: the last probe found separate caches; that result has expired; this call probes.
constexpr uint32_t kSeparateCachesFlag = 1, kProbeExpiredFlag = 2, kProbeFlag = 4;
// Transferring a cache line takes about 60 ns within a shared cache and more than 200 ns between caches. Above 1000 ns
// the two ranks shared a core.
constexpr double kMaxSharedCacheNs = 130, kSharedCoreNs = 1000;
// Data up to this size stays in the private cache of the core that wrote it, where a read by another core is slower
// than a read from memory. Copies up to this size therefore use streaming stores also between cores with a shared
// cache. Reductions reread their own block and need it in the cache.
constexpr size_t kMaxHotBytes = size_t{256} << 10;
// In an all_to_all of this size or more, streaming stores chosen wrongly cost a third; cached stores chosen wrongly
// cost nearly a factor of three. If the last probe has expired, such a call therefore uses streaming stores.
constexpr size_t kMinHedgedBytes = size_t{8} << 20;
constexpr auto kProbeInterval = std::chrono::milliseconds(20), kProbeRetryInterval = std::chrono::milliseconds(5);
constexpr auto kProbeLifetime = std::chrono::milliseconds(100);

// True if the call only copies and all ranks together write at most kMaxHotBytes.
bool is_hot_copy(const Call& call, int size) {
  size_t all = call.count * size_of(call.dtype);
  switch (call.op) {
    case Op::broadcast:
    case Op::all_gather:
    case Op::gather:
    case Op::scatter:
      return all <= kMaxHotBytes;
    case Op::all_to_all:
      return all * static_cast<size_t>(size - 1) <= kMaxHotBytes;
    default:
      return false;
  }
}

}  // namespace

void FusedCollectives::choose_copy_policy(const Call& call) {
  const bool hedges =
      probe_expired_ && call.op == Op::all_to_all && call.count * size_of(call.dtype) >= kMinHedgedBytes;
  streams_copies_ =
      tuning_.copy_policy == CopyPolicy::streamed ||
      (tuning_.copy_policy == CopyPolicy::automatic && (separate_caches_ || is_hot_copy(call, size()) || hedges));
  if (tuning_.copy_policy != CopyPolicy::automatic) return;
  barrier_.mine().addresses[parity()].core = sched_getcpu();
  if (rank() != 0) return;
  uint32_t choice = (separate_caches_ ? kSeparateCachesFlag : 0) | (probe_expired_ ? kProbeExpiredFlag : 0);
  if (Clock::now() >= next_probe_) choice |= kProbeFlag;
  header_of(rank()).choice = choice;
}

// Adopts rank 0's choice and runs the probe if rank 0 requests one. Called after all ranks have entered the call. The
// store type affects only the rank that writes, so ranks may change it at different calls.
void FusedCollectives::follow_copy_policy(Deadline deadline) {
  if (tuning_.copy_policy != CopyPolicy::automatic) return;
  uint32_t choice = header_of(0).choice;
  if (rank() != 0) {
    separate_caches_ = (choice & kSeparateCachesFlag) != 0;
    probe_expired_ = (choice & kProbeExpiredFlag) != 0;
  }
  if ((choice & kProbeFlag) == 0) return;
  int partner = first_rank_on_other_core();
  if (rank() != 0) {
    if (rank() == partner) barrier_.cache_line_ns(0, call_number_, false, deadline);
    return;
  }
  double ns = partner > 0 ? barrier_.cache_line_ns(partner, call_number_, true, deadline) : kSharedCoreNs + 1;
  auto now = Clock::now();
  bool valid = ns <= kSharedCoreNs;
  if (valid) {
    separate_caches_ = ns > kMaxSharedCacheNs;
    probed_at_ = now;
  }
  probe_expired_ = now - probed_at_ > kProbeLifetime;
  next_probe_ = now + (valid ? kProbeInterval : kProbeRetryInterval);
}

// The first rank that entered the call on another core than rank 0; 0 if there is none. All ranks get the same result.
int FusedCollectives::first_rank_on_other_core() const {
  auto core = [&](int member) { return barrier_.page(member).addresses[parity()].core; };
  for (int member = 1; member < size(); ++member)
    if (core(member) != core(0)) return member;
  return 0;
}

double FusedCollectives::cache_line_ns(Deadline deadline) {
  if (size() < 2 || rank() > 1) return 0;
  return barrier_.cache_line_ns(1 - rank(), call_number_, rank() == 0, deadline);
}

}  // namespace esp::comm
