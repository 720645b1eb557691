// How long a rank waits before it asks who keeps it waiting, learned so that the user sets nothing.
//
// Of each phase of a run the last 128 durations are remembered; patience is five times their 99th percentile, never
// less than two seconds. Before there are enough of them an allowance stands in: generous where work of unknown length
// is done (reading and tokenising data, the first steps, the first checkpoint). Pure: time comes from the caller.
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

class Patience {
 public:
  static constexpr Duration kFloor = std::chrono::seconds(2);
  static constexpr Duration kAllowance = std::chrono::seconds(60);  // a phase nobody has seen yet
  static constexpr size_t kRemembered = 128, kEnough = 3;

  void learn(Phase phase, Duration took);
  // `steps_long`: as many steps' work as the phase is thought to be, while it is unknown itself; 0: no idea.
  Duration of(Phase phase, double steps_long = 0) const;
  // Of what is remembered; zero without any.
  Duration p99(Phase phase) const;

 private:
  struct Recent {
    std::vector<Duration> took;  // a ring once it is full
    size_t next = 0;
  };
  std::array<Recent, kNumPhases> recent_;
};

}  // namespace esp::comm
