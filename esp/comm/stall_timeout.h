// Adaptive stall timeout, per phase of a run (startup, step, evaluation, checkpoint). The user sets no parameter.
//
// timeout = max(2 s, 5 × p99 of the last 128 durations). With too few samples an allowance of 60 s applies, because
// startup, the first steps and the first checkpoint take an unknown time. Pure: the caller passes the times.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>
#include <vector>

#include "esp/base/clock.h"

namespace esp::comm {

enum class Phase : unsigned char { start, step, evaluation, checkpoint };
inline constexpr size_t kNumPhases = 4;
std::string_view name_of(Phase phase);

class StallTimeout {
 public:
  static constexpr Duration kFloor = std::chrono::seconds(2);
  static constexpr Duration kAllowance = std::chrono::seconds(60);  // timeout of a phase without samples
  static constexpr size_t kMaxSamples = 128, kMinSamples = 3;

  void record(Phase phase, Duration duration);
  // `expected_steps`: how many times longer than a step the phase should take, used while the phase has no samples; 0:
  // unknown.
  Duration timeout(Phase phase, double expected_steps = 0) const;
  // 99th percentile of the samples; zero without samples.
  Duration p99(Phase phase) const;

 private:
  struct DurationWindow {
    std::vector<Duration> durations;  // ring buffer once it has kMaxSamples entries
    size_t next = 0;
  };
  std::array<DurationWindow, kNumPhases> windows_;
};

}  // namespace esp::comm
