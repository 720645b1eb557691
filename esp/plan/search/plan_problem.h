// The planner's problem: a model on a cluster, the policies of a space, judged by the closed form of estimate.h.
//
// Axes in the order of a choice: gpus tp cp pp ep sequence context zero offload recompute micro_batch schedule
// division. What decides memory comes early, so that a branch that cannot fit ends early. Choices that mean the same
// policy are allowed in one form only (no schedule but the first without a pipeline, no ring or ulysses without cp, …).
// dp is what is left of the processors.
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

class PlanProblem : public Problem {
 public:
  PlanProblem(Shape shape, Cluster cluster, Space space, const Objective& objective);

  bool allowed(const Choice& choice, size_t num_set) const override;
  Worth floor(const Choice& choice, size_t num_set, double memory_bytes) const override;
  Weight weigh(const Choice& choice) const override;
  Worth worth(const Choice& choice) const override;
  Weight lightest(const Choice& choice, size_t num_set) const override;
  double divided_floor(const Choice& choice, double memory_bytes) const override;

  // Axes beyond the first `num_set` are neutral: what breaks no rule that others do not.
  Policy policy_at(const Choice& choice, size_t num_set) const;
  Policy policy_at(const Choice& choice) const { return policy_at(choice, num_axes()); }
  const Cluster& cluster_at(const Choice& choice) const { return clusters_[choice[0]]; }
  Estimate estimate_at(const Choice& choice) const;
  const Shape& shape() const { return shape_; }
  const Space& space() const { return space_; }
  const Objective& objective() const { return objective_; }
  // Bytes of one processor; ranks of our own on a cpu share the machine's. 0: no limit is known.
  double capacity(const Choice& choice) const;
  std::string text_of(const Choice& choice) const;  // "tp=8 pp=4 dp=16 …", what is not neutral

 private:
  Weight weight_of(const Choice& choice, double bytes) const;
  double time_floor_s(const Choice& choice, size_t num_set) const;
  // Of the choice's schedule, its stages equal but for the first, which takes `dearest` (0: equal too).
  double pipeline_floor_s(const Choice& choice, double dearest) const;
  Terms terms(const Choice& choice, double time_s, double memory_bytes) const;
  // Seconds of a micro-batch by layer, the stem with the first and the head with the last.
  const std::vector<double>& layer_times(const Choice& choice) const;
  // The best cut in so many pieces, by the recurrence of the linear partition, and what its dearest piece takes.
  struct Cut {
    std::vector<int> layers;
    double dearest_s = 0;
  };
  const Cut& cut_of(const Choice& choice, int pieces) const;
  std::vector<int> equal_division(const Choice& choice) const;
  std::vector<int> divided(const Choice& choice) const;
  double dearest_of(const Choice& choice) const;

  Shape shape_;
  Cluster cluster_;
  Space space_;
  const Objective& objective_;
  std::vector<Cluster> clusters_;  // by gpus
  bool own_;  // our own runtime on a calibrated machine: timed event by event, and bounded by nothing cheaper
  RateTable rates_;
  mutable std::mutex mutex_;  // guards what follows
  mutable std::map<Choice, std::vector<double>> layer_times_;
  mutable std::map<std::pair<Choice, int>, Cut> cuts_;
};

}  // namespace esp::plan
