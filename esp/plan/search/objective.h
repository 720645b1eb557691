// What is minimised. Each objective has a value and, from a time that nothing beats, a floor below that value.
#pragma once

#include <span>
#include <string_view>

namespace esp::plan {

struct Terms {
  double time_s = 0, memory_bytes = 0;
  double gpus = 1, price_per_hour = 0;
  double goodput = 1;  // of the time, what remains when failures, restarts and checkpoints are taken off
};

struct Objective {
  std::string_view name, help, unit;
  double (*value)(const Terms& terms);
  bool by_goodput;  // whether `goodput` is needed
};
std::span<const Objective> objectives();
const Objective& objective(std::string_view name);  // UsageError lists the known

}  // namespace esp::plan
