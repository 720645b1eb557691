// Which policies are searched: for every axis the values it may take, from the model, the cluster and the batch, or as
// the user narrowed them; everything else is the base policy's.
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
  Policy base;  // global_batch, precision, software … and whatever no axis sets
  std::vector<int> gpus, tp, cp, pp, ep, zero;
  std::vector<int64_t> micro_batch;
  std::vector<int> sequence;  // 0, 1
  std::vector<std::string> context;
  std::vector<Offload> offload;
  std::vector<Recompute> recompute;
  std::vector<ScheduleChoice> schedule;
  std::vector<int> division;  // 0: equal stages, the rest to the first; 1: by dynamic programming
  // A rule more, of a layout up to its schedule; empty: none. May be called from several threads.
  std::function<bool(const Policy&)> also;

  double size() const;  // choices, rules or no
};

// The whole space: tensor, context, pipeline and expert groups that divide the processors, every micro-batch up to a
// limit, every schedule the software has, ZeRO, recomputation and offload. `gpus` may name several numbers of
// processors to choose from (for cost).
Space whole_space(const Shape& shape, const Cluster& cluster, const Policy& base, const std::vector<int>& gpus);

// "tp=1,2,4" "schedule=1f1b,interleaved:2" "recompute=none,full" …: only those. UsageError: an axis or a value there
// is not, with the nearest there is.
void narrow(Space& space, std::string_view text);

// The cluster with as many nodes as so many processors need.
Cluster cluster_of(const Cluster& cluster, int gpus);

std::string name_of(Recompute recompute);
std::string name_of(Offload offload);
std::string name_of(const ScheduleChoice& schedule);  // "interleaved:4"

}  // namespace esp::plan
