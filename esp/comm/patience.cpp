#include "esp/comm/patience.h"

#include <algorithm>

namespace esp::comm {
namespace {

constexpr int kTimes = 5;
constexpr std::string_view kPhaseNames[kNumPhases] = {"start", "step", "evaluation", "checkpoint"};

}  // namespace

std::string_view name_of(Phase phase) {
  return kPhaseNames[static_cast<size_t>(phase)];
}

void Patience::learn(Phase phase, Duration took) {
  Recent& recent = recent_[static_cast<size_t>(phase)];
  if (recent.took.size() < kRemembered) {
    recent.took.push_back(took);
  } else {
    recent.took[recent.next++ % kRemembered] = took;
  }
}

Duration Patience::p99(Phase phase) const {
  std::vector<Duration> sorted = recent_[static_cast<size_t>(phase)].took;
  if (sorted.empty()) return Duration::zero();
  const auto at = sorted.begin() + static_cast<ptrdiff_t>((sorted.size() * 99 + 99) / 100 - 1);
  std::nth_element(sorted.begin(), at, sorted.end());
  return *at;
}

Duration Patience::of(Phase phase, double steps_long) const {
  // An evaluation or a checkpoint seen once says enough; of steps the first are slower than those to come.
  const size_t enough = phase == Phase::step ? kEnough : 1;
  if (phase != Phase::start && recent_[static_cast<size_t>(phase)].took.size() >= enough)
    return std::max(kFloor, kTimes * p99(phase));
  if (steps_long > 0 && recent_[static_cast<size_t>(Phase::step)].took.size() >= kEnough)
    return std::max(kFloor, std::chrono::duration_cast<Duration>(kTimes * steps_long * p99(Phase::step)));
  return kAllowance;
}

}  // namespace esp::comm
