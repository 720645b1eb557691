// The planner's search problem: a model on a cluster, and a search space of policies. The closed form of estimate.h
// evaluates them.
//
// A choice has these axes, in this order: gpus tp cp pp ep sequence context recompute micro_batch schedule division
// zero offload. dp is the number of remaining processors. Of several equivalent choices only one is allowed: without a
// pipeline only the first schedule, without cp only the first context method, and so on.
#pragma once

#include <map>
#include <mutex>
#include <optional>

#include "esp/plan/estimate.h"
#include "esp/plan/search/objective.h"
#include "esp/plan/search/problem.h"
#include "esp/plan/search/rate_table.h"
#include "esp/plan/search/space.h"

namespace esp::plan {

enum class PlanAxis : uint8_t {
  gpus,
  tp,
  cp,
  pp,
  ep,
  sequence,
  context,
  recompute,
  micro_batch,
  schedule,
  division,
  zero,
  offload
};

class PlanProblem : public SearchProblem {
 public:
  PlanProblem(ModelShape shape, Cluster cluster, SearchSpace space, const SearchObjective& objective);

  bool allowed(const Choice& choice, size_t num_set) const override;
  ChoiceValue lower_bound(const Choice& choice, size_t num_set, double memory_bytes) const override;
  ChoiceMemory choice_memory(const Choice& choice) const override;
  ChoiceValue choice_value(const Choice& choice) const override;
  ChoiceMemory least_memory(const Choice& choice, size_t num_set) const override;
  double division_lower_bound(const Choice& choice, double memory_bytes) const override;

  // The policy of a choice. Axes after the first `num_set` take neutral values, which break no further rule.
  Policy policy_at(const Choice& choice, size_t num_set) const;
  Policy policy_at(const Choice& choice) const { return policy_at(choice, num_axes()); }
  const Cluster& cluster_at(const Choice& choice) const { return clusters_[choice[0]]; }
  Estimate estimate_at(const Choice& choice) const;
  const ModelShape& shape() const { return shape_; }
  const SearchSpace& space() const { return space_; }
  const SearchObjective& objective() const { return objective_; }
  // Memory capacity in bytes of one processor; on a CPU cluster, the share of the machine that one rank has. 0:
  // unlimited.
  double capacity(const Choice& choice) const;
  std::string text_of(const Choice& choice) const;  // "tp=8 pp=4 dp=16 …", without axes that have a neutral value

 private:
  ChoiceMemory compare_with_capacity(const Choice& choice, double bytes) const;
  double time_lower_bound_s(const Choice& choice, size_t num_set) const;
  // Lower bound of the pipeline's time with the schedule of the choice, if all pieces are equal. `slowest_piece` > 0:
  // the first piece takes that many seconds instead.
  double pipeline_lower_bound_s(const Choice& choice, double slowest_piece) const;
  ObjectiveTerms terms(const Choice& choice, double time_s, double memory_bytes) const;
  // Seconds per micro-batch of each layer. The first layer includes the embedding, the last the head.
  const std::vector<double>& layer_times(const Choice& choice) const;
  // The division of the layers into pieces that minimises the time of the slowest stage (linear partition), and that
  // time in seconds.
  struct BalancedDivision {
    std::vector<int> layers;
    double slowest_stage_s = 0;
  };
  const BalancedDivision& balanced_division(const Choice& choice, int pieces) const;
  std::vector<int> equal_division(const Choice& choice) const;
  std::vector<int> balanced_layers_at(const Choice& choice) const;
  double balanced_slowest_stage_s(const Choice& choice) const;

  ModelShape shape_;
  Cluster cluster_;
  SearchSpace space_;
  const SearchObjective& objective_;
  std::vector<Cluster> clusters_;  // the cluster for each value of the axis gpus
  // true for an Espalier run on a calibrated machine: the event simulation times it, and there is no cheap lower bound
  bool calibrated_;
  RateTable rates_;
  mutable std::mutex mutex_;  // guards the two caches below
  mutable std::map<Choice, std::vector<double>> layer_times_;
  mutable std::map<std::pair<Choice, int>, BalancedDivision> balanced_divisions_;
};

}  // namespace esp::plan
