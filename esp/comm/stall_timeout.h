// Adaptive stall timeout, per phase of a run (startup, step, evaluation, checkpoint). The user sets nothing.
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
  static constexpr Duration kAllowance = std::chrono::seconds(60);  // of a phase without samples
  static constexpr size_t kMaxSamples = 128, kMinSamples = 3;

  void record(Phase phase, Duration duration);
  // `steps_long`: expected length of a phase without samples, in steps; 0: unknown.
  Duration timeout(Phase phase, double steps_long = 0) const;
  // Of the samples; zero without any.
  Duration p99(Phase phase) const;

 private:
  struct Recent {
    std::vector<Duration> durations;  // a ring once it is full
    size_t next = 0;
  };
  std::array<Recent, kNumPhases> recent_;
};

}  // namespace esp::comm
