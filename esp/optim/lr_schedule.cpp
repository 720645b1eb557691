#include "esp/optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "esp/base/table.h"

namespace esp::optim {
namespace {

// A schedule: `part` returns the learning rate divided by its peak. `progress` is 0 at the end of the warm-up and 1 at
// the last step.
struct Row {
  std::string_view name;
  double (*part)(const LrScheduleOptions&, double progress);
};

double descend(const LrScheduleOptions& o, double progress) {
  return 1 - (1 - o.floor) * progress;
}

constexpr Row kSchedules[] = {
    {"constant", [](const LrScheduleOptions&, double) { return 1.0; }},
    {"linear", descend},
    {"cosine",
     [](const LrScheduleOptions& o, double progress) {
       return o.floor + (1 - o.floor) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
     }},
    {"wsd",
     [](const LrScheduleOptions& o, double progress) {
       const auto after = static_cast<double>(std::max<int64_t>(1, o.steps - o.warmup));
       const double decay = o.decay > 0 ? static_cast<double>(o.decay) : static_cast<double>(o.steps) / 10;
       const double stable = std::max(0.0, 1 - decay / after);
       return progress <= stable ? 1.0 : descend(o, (progress - stable) / (1 - stable));
     }},
};

}  // namespace

double learning_rate(const LrScheduleOptions& o, int64_t step) {
  const Row& row = find_row("learning-rate schedule", kSchedules, o.name);
  if (step < o.warmup) return o.lr * static_cast<double>(step + 1) / static_cast<double>(o.warmup);
  const auto after = static_cast<double>(std::max<int64_t>(1, o.steps - o.warmup));
  return o.lr * row.part(o, std::min(1.0, static_cast<double>(step - o.warmup) / after));
}

std::vector<std::string_view> schedule_names() {
  return names_of(kSchedules);
}

}  // namespace esp::optim
