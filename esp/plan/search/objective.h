// Search objectives: each has a value and, from a lower bound of the time, a lower bound of that value.
#pragma once

#include <span>
#include <string_view>

namespace esp::plan {

struct Terms {
  double time_s = 0, memory_bytes = 0;
  double gpus = 1, price_per_hour = 0;
  double goodput = 1;  // fraction of the time that remains after failures, restarts and checkpoints
};

struct SearchObjective {
  std::string_view name, help, unit;
  double (*value)(const Terms& terms);
  bool by_goodput;         // whether `goodput` is needed
  bool by_memory = false;  // bytes, not time: with another prediction error
};
std::span<const SearchObjective> objectives();
const SearchObjective& objective(std::string_view name);  // UsageError lists the known

}  // namespace esp::plan
