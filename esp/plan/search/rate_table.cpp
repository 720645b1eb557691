#include "esp/plan/search/rate_table.h"

#include <algorithm>

#include "esp/plan/espalier_time.h"
#include "esp/plan/search/plan_problem.h"

namespace esp::plan {
namespace {

// The axes that determine the time of a layer, in the order of a choice.
constexpr PlanAxis kAxes[] = {PlanAxis::tp,      PlanAxis::cp,        PlanAxis::ep,         PlanAxis::sequence,
                              PlanAxis::context, PlanAxis::recompute, PlanAxis::micro_batch};

// Number of axes of kAxes that are among the first `num_set` axes of a choice.
size_t level_of(size_t num_set) {
  size_t level = 0;
  while (level < std::size(kAxes) && static_cast<size_t>(kAxes[level]) < num_set) ++level;
  return level;
}

}  // namespace

size_t RateTable::index(const Choice& choice, size_t level) const {
  size_t at = 0;
  for (size_t i = 0; i < level; ++i) at = at * sizes_[i] + choice[static_cast<size_t>(kAxes[i])];
  return at;
}

RateTable::RateTable(const ModelShape& shape, const Cluster& cluster, const SearchSpace& space)
    : sizes_{space.tp.size(),      space.cp.size(),        space.ep.size(),         space.sequence.size(),
             space.context.size(), space.recompute.size(), space.micro_batch.size()} {
  size_t count = 1;
  for (const size_t n : sizes_) count *= n;
  times_.resize(count);
  least_.resize(kLevels + 1);
  least_[kLevels].assign(count, kNever);
  // For Espalier runs on a calibrated machine the rates stay 0: the event simulation times these runs, and a rank's
  // time depends on the number of ranks that share the cores.
  const bool known = shape.layers > 0 && shape.seq > 0 && !uses_calibrated_rates(cluster, space.base);
  for (size_t at = 0; at < count; ++at) {
    size_t of[kLevels], rest = at;
    for (size_t i = kLevels; i-- > 0; rest /= sizes_[i]) of[i] = rest % sizes_[i];
    Policy policy = space.base;
    policy.tp = space.tp[of[0]];
    policy.cp = space.cp[of[1]];
    policy.ep = space.ep[of[2]];
    policy.sequence = space.sequence[of[3]] != 0;
    policy.context = space.context[of[4]];
    policy.recompute = space.recompute[of[5]];
    policy.micro_batch = space.micro_batch[of[6]];
    // The rules exclude these combinations.
    if ((policy.tp == 1 && policy.sequence && of[3] > 0) || (policy.cp == 1 && of[4] > 0)) continue;
    policy.pp = policy.dp = 1;
    policy.zero = 0;
    policy.schedule = "1f1b";
    policy.interleave = 1;
    policy.stage_layers.clear();
    if (known) times_[at] = stage_times(shape, cluster, policy).front();
    const StageTime& t = times_[at];
    least_[kLevels][at] =
        (t.forward + t.backward + t.weights) * policy.tp * policy.cp / static_cast<double>(policy.micro_batch);
  }
  for (size_t level = kLevels; level-- > 0;) {
    const std::vector<double>& below = least_[level + 1];
    std::vector<double>& here = least_[level];
    here.assign(below.size() / sizes_[level], kNever);
    for (size_t i = 0; i < below.size(); ++i) here[i / sizes_[level]] = std::min(here[i / sizes_[level]], below[i]);
  }
}

const StageTime& RateTable::layer_time(const Choice& choice) const {
  return times_[index(choice, kLevels)];
}

double RateTable::least_rate(const Choice& choice, size_t num_set) const {
  const size_t level = level_of(num_set);
  return least_[level][index(choice, level)];
}

}  // namespace esp::plan
