// Search objectives: functions of time, memory and price. A lower bound of the time gives a lower bound of the
// objective.
#pragma once

#include <span>
#include <string_view>

namespace esp::plan {

struct ObjectiveTerms {
  double time_s = 0, memory_bytes = 0;
  double gpus = 1, price_per_hour = 0;
  double goodput = 1;  // fraction of the time left for useful work after failures, restarts and checkpoints
};

struct SearchObjective {
  std::string_view name, help, unit;
  double (*value)(const ObjectiveTerms& terms);
  bool by_goodput;         // the objective needs ObjectiveTerms::goodput
  bool by_memory = false;  // the value is in bytes instead of time, so its prediction error is kMemoryError
};
std::span<const SearchObjective> objectives();
const SearchObjective& objective(std::string_view name);  // UsageError for an unknown name; it lists the known names

}  // namespace esp::plan
