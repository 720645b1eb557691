#include "esp/plan/search/objective.h"

#include "esp/base/table.h"

namespace esp::plan {
namespace {

// Every objective grows if the time grows or the goodput falls. So a lower bound of the time and a goodput of 1 give a
// lower bound of the objective.
double time_of(const ObjectiveTerms& t) {
  return t.time_s;
}
// Cost of a step; without a price per hour, in processor-hours.
double cost_of_step(const ObjectiveTerms& t) {
  return t.time_s / 3600 * t.gpus * (t.price_per_hour > 0 ? t.price_per_hour : 1);
}
double memory_of_step(const ObjectiveTerms& t) {
  return t.memory_bytes;
}
double time_of_progress(const ObjectiveTerms& t) {
  return t.time_s / t.goodput;
}

constexpr SearchObjective kObjectives[] = {
    {"time", "seconds of a step", "s", time_of, false},
    {"cost", "cost of a step: time × processors × price (processor-hours without a price)", "", cost_of_step, false},
    {"memory", "bytes on the device with the highest memory use", "B", memory_of_step, false, true},
    {"goodput", "seconds per step of useful progress, with failures, restarts and checkpoints", "s", time_of_progress,
     true},
};

}  // namespace

std::span<const SearchObjective> objectives() {
  return kObjectives;
}

const SearchObjective& objective(std::string_view name) {
  return find_row("objective", kObjectives, name);
}

}  // namespace esp::plan
