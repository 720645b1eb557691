// Whether training still works: counts steps that were skipped because a gradient was not finite, and remembers since
// when the loss is not finite. Pure.
#pragma once

#include <cstdint>
#include <string>

namespace esp::train {

class TrainingHealth {
 public:
  // `searching`: the skip lowered a dynamic loss scale (fp16), as a healthy run does too. It only counts in a row.
  void step(int64_t step, double loss, bool skipped, bool searching = false);
  void values_not_finite(int64_t step);

  // What is wrong with the state, or empty: it is one to resume from.
  std::string problem() const;
  // Skipped steps in a row that no bad batch explains: the run ends.
  bool hopeless() const { return in_a_row_ >= kMaxSkippedInARow; }

 private:
  static constexpr int kMaxSkippedInARow = 50;
  static constexpr int kWindow = 16;  // steps of which most are skipped when a run fails late
  int recent_skipped() const;

  int64_t num_steps_ = 0, num_skipped_ = 0, first_skipped_ = 0;
  int64_t not_finite_since_ = 0;  // a step; 0: loss and values are finite
  int in_a_row_ = 0;
  uint32_t recent_ = 0;  // a bit per step, the newest is bit 0
};

}  // namespace esp::train
