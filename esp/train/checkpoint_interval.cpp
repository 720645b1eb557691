#include "esp/train/checkpoint_interval.h"

#include <algorithm>

namespace esp::train {

void CheckpointInterval::begin(double now_s) {
  last_s_ = now_s;
  cost_before_last_s_ = total_cost_s_;
  ++num_;
}

double CheckpointInterval::cost_s() const {
  return num_ > 0 ? total_cost_s_ - cost_before_last_s_ : options_.expected_s;
}

double CheckpointInterval::interval_s() const {
  const double cost = cost_s(), affordable = options_.share * (last_s_ - started_s_);
  // A save protects the work before its start, and only once it is written: the write counts as time at risk.
  const double max_s = std::max(options_.min_s, options_.max_s - cost);
  return std::clamp(std::max(cost, total_cost_s_ + cost - affordable) / options_.share, options_.min_s, max_s);
}

int64_t CheckpointInterval::steps_to_next_decision(double now_s, double step_s) const {
  const double left = last_s_ + interval_s() - now_s;
  if (left <= 0 || step_s <= 0) return 1;
  return std::max<int64_t>(1, static_cast<int64_t>(std::min(left / step_s, 1e12)) / 2);
}

bool CheckpointInterval::exceeds_share() const {
  return num_ > 1 && cost_s() > options_.share * options_.max_s;
}

}  // namespace esp::train
