#include "esp/train/straggler_detector.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace esp::train {

StragglerDetector::SampleStats StragglerDetector::sample_stats(int rank, int64_t newest, int64_t oldest) const {
  SampleStats sum;
  for (int64_t at = newest; at <= oldest && at < std::min<int64_t>(num_steps_, kMaxSamples); ++at) {
    const StepSample& seen = sample_back(at);
    const double part = seen.step_ms > 0 ? seen.waited_ms / seen.step_ms : 0;
    ++sum.count;
    sum.num_for += seen.rank == rank;
    sum.sum += seen.rank == rank ? part : -part;
    sum.squares += part * part;
  }
  return sum;
}

bool StragglerDetector::has_become_slow(int rank) const {
  const SampleStats now = sample_stats(rank, 0, kSteps - 1), before = sample_stats(rank, kSteps, kMaxSamples - 1);
  if (before.count < kSteps || now.num_for < kMinVotes) return false;
  const double mean = now.sum / kSteps;
  const double of_mean = std::max(0.0, now.squares / kSteps - mean * mean) / (kSteps - 1);
  const double differed = std::sqrt(before.squares / before.count);
  return mean >= kMinWaitFraction && mean >= kMinT * std::sqrt(of_mean) &&
         mean * std::sqrt(kSteps) >= kMinChange * differed;
}

// The test is based on Hoeffding 1963. If each step voted for or against the rank at random, then for any weights the
// sum would reach t · sqrt(sum of squares) with probability at most exp(-t²/2).
bool StragglerDetector::is_always_slow(int rank) const {
  const SampleStats all = sample_stats(rank, 0, kMaxSamples - 1);
  return all.sum >= kMinWaitFraction * all.count && all.sum >= kMinChange * std::sqrt(all.squares);
}

// Merges the pending steps into one sample. The sample votes for the rank that the others waited for most. Its weight
// is this waiting time minus that of all other ranks together.
StragglerDetector::StepSample StragglerDetector::merge_pending() {
  StepSample all = std::exchange(pending_, {});
  const auto most = std::max_element(waited_for_.begin(), waited_for_.end());
  const double others = std::accumulate(waited_for_.begin(), waited_for_.end(), -*most);
  all.rank = static_cast<int>(most - waited_for_.begin());
  all.waited_ms = std::max(0.0, *most - others);
  std::fill(waited_for_.begin(), waited_for_.end(), 0);
  return all;
}

std::optional<StragglerDetector::Detection> StragglerDetector::step(int slowest_rank, double waited_ms,
                                                                    double step_ms) {
  const auto rank = static_cast<size_t>(slowest_rank);
  if (waited_for_.size() <= rank) waited_for_.resize(rank + 1);
  waited_for_[rank] += waited_ms;
  pending_.step_ms += step_ms;
  ++pending_.num_steps;
  if (pending_.step_ms < min_sample_ms_) return std::nullopt;
  const StepSample& now = samples_[static_cast<size_t>(num_steps_++ % kMaxSamples)] = merge_pending();
  if (num_steps_ < kSteps || now.rank == last_reported_) return std::nullopt;
  if (!has_become_slow(now.rank) && !is_always_slow(now.rank)) return std::nullopt;
  last_reported_ = now.rank;
  Detection found{now.rank};
  for (int64_t at = 0; at < kSteps; ++at) {
    found.num_steps += sample_back(at).num_steps;
    found.waited_ms += sample_back(at).rank == now.rank ? sample_back(at).waited_ms : 0;
    found.step_ms += sample_back(at).step_ms;
  }
  found.waited_ms /= static_cast<double>(found.num_steps);
  found.step_ms /= static_cast<double>(found.num_steps);
  return found;
}

}  // namespace esp::train
