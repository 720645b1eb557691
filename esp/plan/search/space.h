// Search space: for every axis its candidate values, from the model, the cluster and the batch, or as restricted by the
// user; everything else is taken from the base policy.
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

struct Space {
  Policy base;  // global_batch, precision, software … and everything that is not an axis
  std::vector<int> gpus, tp, cp, pp, ep, zero;
  std::vector<int64_t> micro_batch;
  std::vector<int> sequence;  // 0, 1
  std::vector<std::string> context;
  std::vector<OffloadTarget> offload;
  std::vector<RecomputePolicy> recompute;
  std::vector<ScheduleChoice> schedule;
  std::vector<int> division;  // 0: equal stages, the remainder to the first; 1: by dynamic programming
  // An additional rule for a layout, without its schedule; empty: none. May be called from several threads.
  std::function<bool(const Policy&)> also;

  double size() const;  // number of choices, ignoring rules
};

// The whole space: tensor, context, pipeline and expert groups that divide the processors, every micro-batch up to a
// limit, every schedule of the software, ZeRO, recomputation and offload. `gpus` may list several numbers of processors
// (for cost).
Space whole_space(const ModelShape& shape, const Cluster& cluster, const Policy& base, const std::vector<int>& gpus);

// "tp=1,2,4" "schedule=1f1b,interleaved:2" "recompute=none,full" …: only those values. UsageError: an unknown axis or
// value, with the nearest known.
void narrow(Space& space, std::string_view text);

// The cluster with the number of nodes that these processors need.
Cluster cluster_of(const Cluster& cluster, int gpus);

std::string name_of(RecomputePolicy recompute);
std::string name_of(OffloadTarget offload);
std::string name_of(const ScheduleChoice& schedule);  // "interleaved:4"

}  // namespace esp::plan
