// Learning-rate schedules.
//
// For `warmup` steps the rate rises linearly and reaches its peak on step `warmup` (step s of the warm-up has
// (s+1)/warmup of it). After that: constant; linear or cosine down to `floor`·peak at the last step; or wsd (warm-up,
// stable, decay), constant until the last `decay` steps and then linear down.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace esp::optim {

struct ScheduleOptions {
  std::string name = "cosine";
  double lr = 3e-4;
  int64_t steps = 0;  // of the whole run
  int64_t warmup = 0;
  double floor = 0.1;  // of lr
  int64_t decay = 0;   // wsd; 0: a tenth of the run
};

double learning_rate(const ScheduleOptions& options, int64_t step);  // step from 0; UsageError for an unknown name
std::vector<std::string_view> schedule_names();

}  // namespace esp::optim
