// Learning-rate schedules.
//
// During `warmup` steps the rate rises linearly: step s (from 0) has (s+1)/warmup of the peak. After the warm-up it
// depends on the schedule. constant: stays at the peak. linear, cosine: falls to `floor`·peak at the last step. wsd
// (warm-up, stable, decay): stays at the peak until the last `decay` steps, then falls linearly to `floor`·peak.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace esp::optim {

struct LrScheduleOptions {
  std::string name = "cosine";
  double lr = 3e-4;
  int64_t steps = 0;  // total number of training steps
  int64_t warmup = 0;
  double floor = 0.1;  // final learning rate divided by the peak
  int64_t decay = 0;   // number of decay steps of wsd; 0: a tenth of `steps`
};

// Returns the learning rate of a step; `step` counts from 0. Throws UsageError for an unknown schedule name.
double learning_rate(const LrScheduleOptions& options, int64_t step);
std::vector<std::string_view> schedule_names();

}  // namespace esp::optim
