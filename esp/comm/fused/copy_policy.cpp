// Selects how blocks are written, and remeasures now and then, because virtual machines move cores.
//
// Rank 0 passes a cache line back and forth with a rank on another core, inside a large call. Ranks that share cores
// may measure scheduling instead; then the previous result stays valid for a while.
#include <sched.h>

#include "esp/comm/fused/fused_collectives.h"

namespace esp::comm {
namespace {

// Published in rank 0's header: the result so far, whether it is old, and whether this call measures.
constexpr uint32_t kFarChoice = 1, kUnsureChoice = 2, kLookChoice = 4;
// A cache line transfer takes about 60 ns inside a shared cache and above 200 ns across; beyond a microsecond the ranks
// shared a core.
constexpr double kFarNs = 130, kSharedCoreNs = 1000;
// Data this small stays in its writer's own cache, where fetching it costs more than from memory: smaller copies stream
// past the cache between near cores too. Reductions reread their own block and need it in cache.
constexpr size_t kHotBytes = size_t{256} << 10;
// In a large exchange a wrong guess costs a third one way and nearly threefold the other; an uncertain measurement
// takes the cheaper risk.
constexpr size_t kGuessFrom = size_t{8} << 20;
constexpr auto kLookEvery = std::chrono::milliseconds(20), kRetryAfter = std::chrono::milliseconds(5);
constexpr auto kTrustFor = std::chrono::milliseconds(100);

// Whether the call only copies, and the ranks together write little.
bool is_hot_copy(const Call& call, int size) {
  size_t all = call.count * size_of(call.dtype);
  switch (call.op) {
    case Op::broadcast:
    case Op::all_gather:
    case Op::gather:
    case Op::scatter:
      return all <= kHotBytes;
    case Op::all_to_all:
      return all * static_cast<size_t>(size - 1) <= kHotBytes;
    default:
      return false;
  }
}

}  // namespace

void FusedCollectives::choose_copy_policy(const Call& call) {
  const bool hedges = unsure_ && call.op == Op::all_to_all && call.count * size_of(call.dtype) >= kGuessFrom;
  past_cache_ = tuning_.copy_policy == CopyPolicy::streamed ||
                (tuning_.copy_policy == CopyPolicy::automatic && (far_ || is_hot_copy(call, size()) || hedges));
  if (tuning_.copy_policy != CopyPolicy::automatic) return;
  barrier_.mine().places[parity()].core = sched_getcpu();
  if (rank() != 0) return;
  uint32_t choice = (far_ ? kFarChoice : 0) | (unsure_ ? kUnsureChoice : 0);
  if (Clock::now() >= look_again_) choice |= kLookChoice;
  header_of(rank()).choice = choice;
}

// Called after all ranks have met. Only the writer is affected, so ranks need not switch at the same call.
void FusedCollectives::follow_copy_policy(Deadline deadline) {
  if (tuning_.copy_policy != CopyPolicy::automatic) return;
  uint32_t choice = header_of(0).choice;
  if (rank() != 0) {
    far_ = (choice & kFarChoice) != 0;
    unsure_ = (choice & kUnsureChoice) != 0;
  }
  if ((choice & kLookChoice) == 0) return;
  int partner = on_another_core();
  if (rank() != 0) {
    if (rank() == partner) barrier_.cache_line_ns(0, call_number_, false, deadline);
    return;
  }
  double ns = partner > 0 ? barrier_.cache_line_ns(partner, call_number_, true, deadline) : kSharedCoreNs + 1;
  auto now = Clock::now();
  bool seen = ns <= kSharedCoreNs;
  if (seen) {
    far_ = ns > kFarNs;
    seen_at_ = now;
  }
  unsure_ = now - seen_at_ > kTrustFor;
  look_again_ = now + (seen ? kLookEvery : kRetryAfter);
}

// The first rank on another core than rank 0 when it entered the call, equal on all ranks; 0 if there is none.
int FusedCollectives::on_another_core() const {
  auto core = [&](int member) { return barrier_.page(member).places[parity()].core; };
  for (int member = 1; member < size(); ++member)
    if (core(member) != core(0)) return member;
  return 0;
}

double FusedCollectives::cache_line_ns(Deadline deadline) {
  if (size() < 2 || rank() > 1) return 0;
  return barrier_.cache_line_ns(1 - rank(), call_number_, rank() == 0, deadline);
}

}  // namespace esp::comm
