// Search space: the candidate values of every axis, derived from the model, the cluster and the batch. The user may
// restrict them. All other fields of a policy come from `base`.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "esp/plan/cluster.h"
#include "esp/plan/policy.h"
#include "esp/plan/shape.h"

namespace esp::plan {

struct ScheduleChoice {
  std::string name = "1f1b";
  int interleave = 1;
  bool operator==(const ScheduleChoice&) const = default;
};

struct SearchSpace {
  Policy base;  // all fields that are not axes: global_batch, precision, software …
  std::vector<int> gpus, tp, cp, pp, ep, zero;
  std::vector<int64_t> micro_batch;
  std::vector<int> sequence;  // 0: off, 1: sequence parallel
  std::vector<std::string> context;
  std::vector<OffloadTarget> offload;
  std::vector<RecomputePolicy> recompute;
  std::vector<ScheduleChoice> schedule;
  std::vector<int> division;  // 0: equal stages, the first ones get the remainder; 1: balanced by dynamic programming
  // An additional rule for a layout. It is called when the schedule axis is set; an empty function allows all layouts.
  // May be called from several threads.
  std::function<bool(const Policy&)> extra_rule;

  double size() const;  // number of combinations of values, including those that break a rule
};

// The complete search space. Tensor, context, pipeline and expert groups divide the processors; micro-batch sizes go up
// to a limit; plus every schedule of the software, ZeRO stages, recomputation and offload. `gpus` may list several
// numbers of processors (to minimise cost).
SearchSpace full_search_space(const ModelShape& shape, const Cluster& cluster, const Policy& base,
                              const std::vector<int>& gpus);

// Restricts one axis to the listed values: "tp=1,2,4", "schedule=1f1b,interleaved:2", "recompute=none,full". UsageError
// for an unknown axis or value.
void restrict_axis(SearchSpace& space, std::string_view text);

// The cluster reduced or extended to the nodes that `gpus` processors need.
Cluster resize_cluster(const Cluster& cluster, int gpus);

std::string name_of(RecomputePolicy recompute);
std::string name_of(OffloadTarget offload);
std::string name_of(const ScheduleChoice& schedule);  // "interleaved:4"

}  // namespace esp::plan
