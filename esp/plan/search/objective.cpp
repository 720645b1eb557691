#include "esp/plan/search/objective.h"

#include "esp/base/table.h"

namespace esp::plan {
namespace {

// Every value grows with the time and falls with the goodput: with a floor of the time and a goodput of one it is a
// floor itself.
double time_of(const Terms& t) {
  return t.time_s;
}
// Without a price, processor-hours.
double cost_of_step(const Terms& t) {
  return t.time_s / 3600 * t.gpus * (t.price_per_hour > 0 ? t.price_per_hour : 1);
}
double memory_of_step(const Terms& t) {
  return t.memory_bytes;
}
double time_of_progress(const Terms& t) {
  return t.time_s / t.goodput;
}

constexpr Objective kObjectives[] = {
    {"time", "seconds of a step", "s", time_of, false},
    {"cost", "what a step costs: time × processors × price (processor-hours where there is no price)", "", cost_of_step,
     false},
    {"memory", "bytes of the most loaded processor", "B", memory_of_step, false},
    {"goodput", "seconds of a step of progress, with failures, restarts and checkpoints", "s", time_of_progress, true},
};

}  // namespace

std::span<const Objective> objectives() {
  return kObjectives;
}

const Objective& objective(std::string_view name) {
  return find_row("objective", kObjectives, name);
}

}  // namespace esp::plan
