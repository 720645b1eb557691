#include "esp/train/straggler.h"

namespace esp::train {

std::optional<Straggler::Found> Straggler::step(int slowest_rank, double waited_ms, double step_ms) {
  if (slowest_rank != rank_) {
    rank_ = slowest_rank;
    num_steps_ = 0;
    waited_ms_ = step_ms_ = 0;
  }
  ++num_steps_;
  waited_ms_ += waited_ms;
  step_ms_ += step_ms;
  if (num_steps_ < kSteps) return std::nullopt;
  const Found found{rank_, waited_ms_ / num_steps_, step_ms_ / num_steps_};
  num_steps_ = 0;
  waited_ms_ = step_ms_ = 0;
  if (found.waited_ms < kPart * found.step_ms || told_ == rank_) return std::nullopt;
  told_ = rank_;
  return found;
}

}  // namespace esp::train
