#include "esp/train/straggler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

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

// They speak for the rank that was waited for most, by how much more than for all the others.
Straggler::Seen Straggler::together() {
  Seen all = std::exchange(under_way_, {});
  const auto most = std::max_element(waited_for_.begin(), waited_for_.end());
  const double others = std::accumulate(waited_for_.begin(), waited_for_.end(), -*most);
  all.rank = static_cast<int>(most - waited_for_.begin());
  all.waited_ms = std::max(0.0, *most - others);
  std::fill(waited_for_.begin(), waited_for_.end(), 0);
  return all;
}

std::optional<Straggler::Found> Straggler::step(int slowest_rank, double waited_ms, double step_ms) {
  const auto rank = static_cast<size_t>(slowest_rank);
  if (waited_for_.size() <= rank) waited_for_.resize(rank + 1);
  waited_for_[rank] += waited_ms;
  under_way_.step_ms += step_ms;
  ++under_way_.num_steps;
  if (under_way_.step_ms < shortest_ms_) return std::nullopt;
  const Seen& now = seen_[static_cast<size_t>(num_steps_++ % kKept)] = together();
  if (num_steps_ < kSteps || now.rank == told_) return std::nullopt;
  if (!became_slow(now.rank) && !always_was(now.rank)) return std::nullopt;
  told_ = now.rank;
  Found found{now.rank};
  for (int64_t at = 0; at < kSteps; ++at) {
    found.num_steps += back(at).num_steps;
    found.waited_ms += back(at).rank == now.rank ? back(at).waited_ms : 0;
    found.step_ms += back(at).step_ms;
  }
  found.waited_ms /= static_cast<double>(found.num_steps);
  found.step_ms /= static_cast<double>(found.num_steps);
  return found;
}

}  // namespace esp::train
