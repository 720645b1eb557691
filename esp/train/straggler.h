// Who holds up the others, step after step: one rank that was the slowest in each of twenty steps in a row, and for
// which the others waited at least a twelfth of the time, is named, once until another is. Pure.
#pragma once

#include <cstdint>
#include <optional>

namespace esp::train {

class Straggler {
 public:
  static constexpr int kSteps = 20;
  static constexpr double kPart = 1.0 / 12;  // a rank 10 % slower costs an eleventh of its steps

  struct Found {
    int rank = 0;
    double waited_ms = 0, step_ms = 0;  // means over those steps
  };
  // After each step; `waited_ms`: by the others, on average.
  std::optional<Found> step(int slowest_rank, double waited_ms, double step_ms);

 private:
  int rank_ = -1, num_steps_ = 0;
  double waited_ms_ = 0, step_ms_ = 0;
  int told_ = -1;
};

}  // namespace esp::train
