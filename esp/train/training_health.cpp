#include "esp/train/training_health.h"

#include <bit>
#include <cmath>

#include <fmt/format.h>

namespace esp::train {

void TrainingHealth::step(int64_t step, double loss, bool skipped, bool searching) {
  in_a_row_ = skipped ? in_a_row_ + 1 : 0;
  if (std::isfinite(loss)) {
    not_finite_since_ = 0;
  } else if (not_finite_since_ == 0) {
    not_finite_since_ = step;
  }
  if (searching) return;
  ++num_steps_;
  recent_ = recent_ << 1 | (skipped ? 1u : 0u);
  at_end_ = skipped ? at_end_ + 1 : 0;
  if (!skipped) return;
  if (num_skipped_++ == 0) first_skipped_ = step;
}

void TrainingHealth::values_not_finite(int64_t step) {
  if (not_finite_since_ == 0) not_finite_since_ = step;
}

int TrainingHealth::recent_skipped() const {
  return std::popcount(recent_ & ((1u << kWindow) - 1));
}

std::string TrainingHealth::problem() const {
  if (should_abort()) return fmt::format("{} steps in a row were skipped, because gradients are not finite", in_a_row_);
  if (not_finite_since_ > 0) return fmt::format("loss or values are not finite since step {}", not_finite_since_);
  if (2 * num_skipped_ > num_steps_)
    return fmt::format("{} of {} steps were skipped, the first at step {}, because gradients are not finite",
                       num_skipped_, num_steps_, first_skipped_);
  if (2 * recent_skipped() > kWindow)
    return fmt::format("{} of the last {} steps were skipped, because gradients are not finite", recent_skipped(),
                       kWindow);
  if (at_end_ > kMaxSkippedAtEnd)
    return fmt::format("the last {} steps were skipped, because gradients are not finite", at_end_);
  return {};
}

}  // namespace esp::train
