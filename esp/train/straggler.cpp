#include "esp/train/straggler.h"

#include <algorithm>
#include <cmath>

namespace esp::train {

Straggler::Sum Straggler::said(int rank, int64_t newest, int64_t oldest) const {
  Sum sum;
  for (int64_t at = newest; at <= oldest && at < std::min<int64_t>(num_steps_, kKept); ++at) {
    const Seen& seen = back(at);
    const double part = seen.step_ms > 0 ? seen.waited_ms / seen.step_ms : 0;
    ++sum.count;
    sum.num_for += seen.rank == rank;
    sum.sum += seen.rank == rank ? part : -part;
    sum.squares += part * part;
  }
  return sum;
}

bool Straggler::became_slow(int rank) const {
  const Sum now = said(rank, 0, kSteps - 1), before = said(rank, kSteps, kKept - 1);
  if (before.count < kSteps || now.num_for < kLeast) return false;
  const double mean = now.sum / kSteps;
  const double of_mean = std::max(0.0, now.squares / kSteps - mean * mean) / (kSteps - 1);
  const double differed = std::sqrt(before.squares / before.count);
  return mean >= kPart && mean >= kEven * std::sqrt(of_mean) && mean * std::sqrt(kSteps) >= kFar * differed;
}

// Whatever the steps weigh, if each speaks for either side by chance the sum reaches t times the root of their squares
// with probability at most exp(-t²/2) (Hoeffding 1963).
bool Straggler::always_was(int rank) const {
  const Sum all = said(rank, 0, kKept - 1);
  return all.sum >= kPart * all.count && all.sum >= kFar * std::sqrt(all.squares);
}

std::optional<Straggler::Found> Straggler::step(int slowest_rank, double waited_ms, double step_ms) {
  seen_[static_cast<size_t>(num_steps_++ % kKept)] = {slowest_rank, waited_ms, step_ms};
  if (num_steps_ < kSteps || slowest_rank == told_) return std::nullopt;
  if (!became_slow(slowest_rank) && !always_was(slowest_rank)) return std::nullopt;
  told_ = slowest_rank;
  Found found{slowest_rank, 0, 0};
  for (int64_t at = 0; at < kSteps; ++at) {
    found.waited_ms += back(at).rank == slowest_rank ? back(at).waited_ms / kSteps : 0;
    found.step_ms += back(at).step_ms / kSteps;
  }
  return found;
}

}  // namespace esp::train
