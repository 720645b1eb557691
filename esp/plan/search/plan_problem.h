// The planner's search problem: a model on a cluster, the policies of a space, evaluated by the closed form of
// estimate.h.
//
// Axes in the order of a choice: gpus tp cp pp ep sequence context zero offload recompute micro_batch schedule
// division. Axes that determine memory come early, so that a branch that cannot fit ends early. Equivalent choices are
// allowed in one form only (no schedule but the first without a pipeline, no ring or ulysses without cp, …). dp is the
// remaining number of processors.
#pragma once

#include <map>
#include <mutex>
#include <optional>

#include "esp/plan/estimate.h"
#include "esp/plan/search/objective.h"
#include "esp/plan/search/problem.h"
#include "esp/plan/search/rates.h"
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
  PlanProblem(ModelShape shape, Cluster cluster, Space space, const SearchObjective& objective);

  bool allowed(const Choice& choice, size_t num_set) const override;
  ChoiceValue floor(const Choice& choice, size_t num_set, double memory_bytes) const override;
  ChoiceMemory weigh(const Choice& choice) const override;
  ChoiceValue worth(const Choice& choice) const override;
  ChoiceMemory lightest(const Choice& choice, size_t num_set) const override;
  double divided_floor(const Choice& choice, double memory_bytes) const override;

  // Axes beyond the first `num_set` are neutral: set to values that break no additional rule.
  Policy policy_at(const Choice& choice, size_t num_set) const;
  Policy policy_at(const Choice& choice) const { return policy_at(choice, num_axes()); }
  const Cluster& cluster_at(const Choice& choice) const { return clusters_[choice[0]]; }
  Estimate estimate_at(const Choice& choice) const;
  const ModelShape& shape() const { return shape_; }
  const Space& space() const { return space_; }
  const SearchObjective& objective() const { return objective_; }
  // Bytes of one processor; on a CPU cluster the ranks of this runtime share the machine's. 0: unlimited.
  double capacity(const Choice& choice) const;
  std::string text_of(const Choice& choice) const;  // "tp=8 pp=4 dp=16 …", without neutral axes

 private:
  ChoiceMemory weight_of(const Choice& choice, double bytes) const;
  double time_floor_s(const Choice& choice, size_t num_set) const;
  // Of the choice's schedule, with equal stages except the first, which takes `dearest` (0: equal too).
  double pipeline_floor_s(const Choice& choice, double slowest_piece) const;
  Terms terms(const Choice& choice, double time_s, double memory_bytes) const;
  // Seconds per micro-batch by layer, the stem with the first and the head with the last.
  const std::vector<double>& layer_times(const Choice& choice) const;
  // The best division into `pieces`, by the recurrence of the linear partition, and the time of its slowest piece.
  struct Cut {
    std::vector<int> layers;
    double slowest_stage_s = 0;
  };
  const Cut& cut_of(const Choice& choice, int pieces) const;
  std::vector<int> equal_division(const Choice& choice) const;
  std::vector<int> divided(const Choice& choice) const;
  double dearest_of(const Choice& choice) const;

  ModelShape shape_;
  Cluster cluster_;
  Space space_;
  const SearchObjective& objective_;
  std::vector<Cluster> clusters_;  // by gpus
  bool own_;                       // this runtime on a calibrated machine: timed by events, without a cheaper bound
  RateTable rates_;
  mutable std::mutex mutex_;  // guards all below
  mutable std::map<Choice, std::vector<double>> layer_times_;
  mutable std::map<std::pair<Choice, int>, Cut> cuts_;
};

}  // namespace esp::plan
