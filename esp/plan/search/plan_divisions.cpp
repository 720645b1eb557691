// Divisions of the layers over the stages of a choice: equal, or balanced by layer times. Layer times and divisions are
// cached; the cache key contains only the axes that change them.
#include "esp/parallel/pp/partition.h"
#include "esp/plan/search/plan_problem.h"
#include "esp/plan/states.h"

namespace esp::plan {
namespace {

constexpr size_t at(PlanAxis axis) {
  return static_cast<size_t>(axis);
}

// Cache key of a choice: axes that do not change the time of a layer are set to 0.
Choice key_of(Choice choice) {
  for (const PlanAxis axis : {PlanAxis::pp, PlanAxis::zero, PlanAxis::offload, PlanAxis::schedule, PlanAxis::division})
    choice[at(axis)] = 0;
  return choice;
}

}  // namespace

const std::vector<double>& PlanProblem::layer_times(const Choice& choice) const {
  const Choice key = key_of(choice);
  {
    const std::lock_guard lock(mutex_);
    const auto known = layer_times_.find(key);
    if (known != layer_times_.end()) return known->second;
  }
  Policy policy = policy_at(choice, at(PlanAxis::schedule));
  policy.pp = static_cast<int>(shape_.layers);
  policy.zero = 0;
  policy.offload = OffloadTarget::none;
  std::vector<double> times;
  for (const StageTime& one : stage_times(shape_, cluster_at(choice), policy))
    times.push_back(one.forward + one.backward + one.weights);
  const std::lock_guard lock(mutex_);  // if another thread inserted the same value first, emplace() keeps that one
  return layer_times_.emplace(key, std::move(times)).first->second;
}

const PlanProblem::BalancedDivision& PlanProblem::balanced_division(const Choice& choice, int pieces) const {
  const Choice key = key_of(choice);
  {
    const std::lock_guard lock(mutex_);
    const auto known = balanced_divisions_.find({key, pieces});
    if (known != balanced_divisions_.end()) return known->second;
  }
  const std::vector<double>& times = layer_times(choice);
  BalancedDivision cut;
  const std::vector<int> places = parallel::linear_partition(times, pieces);
  for (size_t i = 0; i + 1 < places.size(); ++i) cut.layers.push_back(places[i + 1] - places[i]);
  cut.slowest_stage_s = parallel::max_piece_cost(times, places);
  const std::lock_guard lock(mutex_);
  return balanced_divisions_.emplace(std::pair(key, pieces), std::move(cut)).first->second;
}

std::vector<int> PlanProblem::equal_division(const Choice& choice) const {
  return pipeline_pieces(shape_, policy_at(choice, at(PlanAxis::schedule) + 1)).layers;
}

std::vector<int> PlanProblem::balanced_layers_at(const Choice& choice) const {
  std::vector<int> equal = equal_division(choice);
  const auto pieces = static_cast<int>(equal.size());
  return pieces > shape_.layers ? equal : balanced_division(choice, pieces).layers;
}

double PlanProblem::balanced_slowest_stage_s(const Choice& choice) const {
  const auto pieces = static_cast<int>(equal_division(choice).size());
  return pieces > shape_.layers ? 0 : balanced_division(choice, pieces).slowest_stage_s;
}

}  // namespace esp::plan
