#include "esp/comm/stall_timeout.h"

#include <algorithm>

namespace esp::comm {
namespace {

constexpr int kTimes = 5;
constexpr std::string_view kPhaseNames[kNumPhases] = {"start", "step", "evaluation", "checkpoint"};

}  // namespace

std::string_view name_of(Phase phase) {
  return kPhaseNames[static_cast<size_t>(phase)];
}

void StallTimeout::record(Phase phase, Duration duration) {
  DurationWindow& recent = windows_[static_cast<size_t>(phase)];
  if (recent.durations.size() < kMaxSamples) {
    recent.durations.push_back(duration);
  } else {
    recent.durations[recent.next++ % kMaxSamples] = duration;
  }
}

Duration StallTimeout::p99(Phase phase) const {
  std::vector<Duration> sorted = windows_[static_cast<size_t>(phase)].durations;
  if (sorted.empty()) return Duration::zero();
  const auto at = sorted.begin() + static_cast<ptrdiff_t>((sorted.size() * 99 + 99) / 100 - 1);
  std::nth_element(sorted.begin(), at, sorted.end());
  return *at;
}

Duration StallTimeout::timeout(Phase phase, double expected_steps) const {
  // One sample is enough for evaluations and checkpoints. Steps need kMinSamples, because the first steps are slow.
  const size_t enough = phase == Phase::step ? kMinSamples : 1;
  if (phase != Phase::start && windows_[static_cast<size_t>(phase)].durations.size() >= enough)
    return std::max(kFloor, kTimes * p99(phase));
  if (expected_steps > 0 && windows_[static_cast<size_t>(Phase::step)].durations.size() >= kMinSamples)
    return std::max(kFloor, std::chrono::duration_cast<Duration>(kTimes * expected_steps * p99(Phase::step)));
  return kAllowance;
}

}  // namespace esp::comm
