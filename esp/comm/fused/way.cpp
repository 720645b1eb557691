// How blocks are put down: looked at now and then, since a virtual machine's cores move.
//
// Rank 0 hands a cache line to and fro with a rank that runs on another core, inside a large call that both are in
// anyway. Ranks that take turns on the cores may show scheduling instead; then the last look counts for a while longer.
#include <sched.h>

#include "esp/comm/fused/fused.h"

namespace esp::comm {
namespace {

// What rank 0's header carries: the verdict so far, whether it is old, and whether this call takes a look.
constexpr uint32_t kFarChoice = 1, kUnsureChoice = 2, kLookChoice = 4;
// A hand-over is about 60 ns inside a cache and above 200 across; beyond a microsecond the ranks took turns.
constexpr double kFarNs = 130, kSharedCoreNs = 1000;
// So little stays in its writer's own cache, and fetching it from there costs more than from memory: copies of less go
// past the cache between near cores too. Reductions read their own block again and want it close.
constexpr size_t kHotBytes = size_t{256} << 10;
// In a large exchange a wrong guess costs a third one way and nearly threefold the other: unsure, the milder is made.
constexpr size_t kGuessFrom = size_t{8} << 20;
constexpr auto kLookEvery = std::chrono::milliseconds(20), kRetryAfter = std::chrono::milliseconds(5);
constexpr auto kTrustFor = std::chrono::milliseconds(100);

// Whether the call only copies, and all ranks together put down little for each other.
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

void Fused::choose_way(const Call& call) {
  const bool hedges = unsure_ && call.op == Op::all_to_all && call.count * size_of(call.dtype) >= kGuessFrom;
  past_cache_ =
      tuning_.way == Way::streamed || (tuning_.way == Way::automatic && (far_ || is_hot_copy(call, size()) || hedges));
  if (tuning_.way != Way::automatic) return;
  gate_.mine().places[parity()].core = sched_getcpu();
  if (rank() != 0) return;
  uint32_t choice = (far_ ? kFarChoice : 0) | (unsure_ ? kUnsureChoice : 0);
  if (Clock::now() >= look_again_) choice |= kLookChoice;
  header_of(rank()).choice = choice;
}

// After all have met. How a block is put down concerns the writer alone, so ranks need not change at the same call.
void Fused::follow_choice(Deadline deadline) {
  if (tuning_.way != Way::automatic) return;
  uint32_t choice = header_of(0).choice;
  if (rank() != 0) {
    far_ = (choice & kFarChoice) != 0;
    unsure_ = (choice & kUnsureChoice) != 0;
  }
  if ((choice & kLookChoice) == 0) return;
  int partner = on_another_core();
  if (rank() != 0) {
    if (rank() == partner) gate_.hand_over_ns(0, call_number_, false, deadline);
    return;
  }
  double ns = partner > 0 ? gate_.hand_over_ns(partner, call_number_, true, deadline) : kSharedCoreNs + 1;
  auto now = Clock::now();
  bool seen = ns <= kSharedCoreNs;
  if (seen) {
    far_ = ns > kFarNs;
    seen_at_ = now;
  }
  unsure_ = now - seen_at_ > kTrustFor;
  look_again_ = now + (seen ? kLookEvery : kRetryAfter);
}

// The first rank that was elsewhere than rank 0 when it entered the call, the same for all who ask; 0 if there is none.
int Fused::on_another_core() const {
  auto core = [&](int member) { return gate_.page(member).places[parity()].core; };
  for (int member = 1; member < size(); ++member)
    if (core(member) != core(0)) return member;
  return 0;
}

double Fused::hand_over_ns(Deadline deadline) {
  if (size() < 2 || rank() > 1) return 0;
  return gate_.hand_over_ns(1 - rank(), call_number_, rank() == 0, deadline);
}

}  // namespace esp::comm
