// TrainingHealth: decides whether training still makes progress. It counts steps that were skipped because gradients
// were not finite, and records since which step the loss is not finite. Pure.
#pragma once

#include <cstdint>
#include <string>

namespace esp::train {

class TrainingHealth {
 public:
  // `searching` is true if the skipped step lowered a dynamic loss scale (fp16), which also happens in healthy runs.
  // Such a step counts only as one of the consecutive skips.
  void step(int64_t step, double loss, bool skipped, bool searching = false);
  void values_not_finite(int64_t step);

  // Why a run could not resume from the current state; empty if it can.
  std::string problem() const;
  // True after kMaxSkippedInARow consecutive skipped steps: bad batches cannot be the reason, and the run must end.
  bool should_abort() const { return in_a_row_ >= kMaxSkippedInARow; }

 private:
  static constexpr int kMaxSkippedInARow = 50;
  // Number of recent steps to examine, to detect a failure late in a run: it is a problem if most of them were skipped.
  static constexpr int kWindow = 16;
  // Number of skipped steps at the end that are a problem: fewer can have bad batches as their reason.
  static constexpr int kMaxSkippedAtEnd = 2;
  int recent_skipped() const;

  int64_t num_steps_ = 0, num_skipped_ = 0, first_skipped_ = 0;
  int64_t not_finite_since_ = 0;  // first step at which loss or values were not finite; 0: they are finite
  int in_a_row_ = 0;
  int at_end_ = 0;       // consecutive skipped steps up to now, without those that lowered the loss scale
  uint32_t recent_ = 0;  // one bit per step, 1 if skipped; bit 0 is the last step
};

}  // namespace esp::train
