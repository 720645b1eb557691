// How blocks are put down: looked at now and then, since a virtual machine's cores move.
//
// Rank 0 hands a cache line to and fro with a partner, inside a large call that both are in anyway. Ranks that share a
// core show scheduling instead, and rank 0 turns to the next partner.
#include <algorithm>

#include "esp/comm/fused/fused.h"

namespace esp::comm {
namespace {

// What rank 0's header carries: the verdict so far, and above it the partner of a look, if any.
constexpr uint32_t kFarChoice = 1, kPartnerShift = 8;
// A hand-over is about 60 ns inside a cache and above 200 across; beyond a microsecond the ranks took turns.
constexpr double kFarNs = 130, kSharedCoreNs = 1000;
// So little stays in its writer's own cache, and fetching it from there costs more than from memory: copies of less go
// past the cache between near cores too. Reductions read their own block again and want it close.
constexpr size_t kHotBytes = size_t{256} << 10;
// Ranks that take turns on the cores seldom see how far these are. In a large exchange a wrong guess costs a third one
// way and nearly threefold the other, so there the milder one is made.
constexpr size_t kGuessFrom = size_t{8} << 20;
constexpr auto kLookEvery = std::chrono::milliseconds(20), kRetryAfter = std::chrono::milliseconds(10);

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
  const bool hedges = gate_.crowded() && call.op == Op::all_to_all && call.count * size_of(call.dtype) >= kGuessFrom;
  past_cache_ =
      tuning_.way == Way::streamed || (tuning_.way == Way::automatic && (far_ || is_hot_copy(call, size()) || hedges));
  if (rank() != 0 || tuning_.way != Way::automatic) return;
  uint32_t choice = far_ ? kFarChoice : 0;
  if (Clock::now() >= look_again_) choice |= static_cast<uint32_t>(partner_) << kPartnerShift;
  gate_.mine().header[parity()].choice = choice;
}

// After all have met. How a block is put down concerns the writer alone, so ranks need not change at the same call.
void Fused::follow_choice(Deadline deadline) {
  if (tuning_.way != Way::automatic) return;
  uint32_t choice = gate_.page(0).header[parity()].choice;
  int partner = static_cast<int>(choice >> kPartnerShift);
  if (rank() != 0) {
    far_ = (choice & kFarChoice) != 0;
    if (rank() == partner) gate_.hand_over_ns(0, call_number_, false, deadline);
    return;
  }
  if (partner == 0) return;
  double ns = gate_.hand_over_ns(partner, call_number_, true, deadline);
  bool turns = ns > kSharedCoreNs;
  if (turns)
    partner_ = partner_ % (size() - 1) + 1;
  else
    far_ = ns > kFarNs;
  look_again_ = Clock::now() + (turns ? kRetryAfter : kLookEvery);
}

double Fused::hand_over_ns(Deadline deadline) {
  if (size() < 2 || rank() > 1) return 0;
  return gate_.hand_over_ns(1 - rank(), call_number_, rank() == 0, deadline);
}

}  // namespace esp::comm
