#include "esp/plan/search/mixed.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/plan/search/division.h"

namespace esp::plan {
namespace {

double sum_of(const StageTime& t) {
  return t.forward + t.backward + t.weights;
}

// One stage per layer, one micro-batch in flight on each.
Policy by_layer(const ModelShape& shape, Policy policy) {
  policy.pp = static_cast<int>(shape.layers);
  policy.interleave = 1;
  policy.schedule = "gpipe";
  policy.global_batch = policy.micro_batch * policy.dp;
  policy.stage_layers.clear();
  return policy;
}

struct Costs {
  std::vector<DivisionLayer> layers;  // on the first pool
  std::vector<DevicePool> pools;
};

Costs costs_of(const ModelShape& shape, const std::vector<Cluster>& clusters, const Policy& policy, int width) {
  const Policy each = by_layer(shape, policy);
  Costs costs;
  double first = 0;
  for (const Cluster& cluster : clusters) {
    double whole = 0, apart = 0, slack = 0;
    const std::vector<StageTime> times = stage_times(shape, cluster, each);
    const std::vector<Memory> memories = stage_memories(shape, cluster, each);
    for (size_t i = 0; i < times.size(); ++i) {
      whole += sum_of(times[i]);
      apart = std::max(apart, memories[i].buffer + memories[i].other);
      slack = std::max(slack, memories[i].slack / std::max(1.0, memories[i].allocated()));
      if (costs.pools.empty()) costs.layers.push_back({sum_of(times[i]), memories[i].states(), memories[i].activation});
    }
    if (costs.pools.empty()) first = whole;
    const double room = (cluster.processor.memory_bytes - apart) / (1 + slack);
    // A pool that is too small for any layer gets one byte: 0 would mean no limit.
    costs.pools.push_back({cluster.size() / width, whole / first, std::max(1.0, room)});
  }
  return costs;
}

// The closed form's memory of each stage, on its pool; none: a stage does not fit.
std::optional<std::vector<Memory>> memories_of(const ModelShape& shape, const std::vector<Cluster>& clusters,
                                               const Policy& policy, const std::vector<int>& pool_of_stage) {
  std::vector<Memory> stages;
  for (size_t k = 0; k < pool_of_stage.size(); ++k) {
    const Cluster& cluster = clusters[static_cast<size_t>(pool_of_stage[k])];
    stages.push_back(stage_memories(shape, cluster, policy)[k]);
    if (stages.back().total() > cluster.processor.memory_bytes) return std::nullopt;
  }
  return stages;
}

// Gradient sums over replicas and the update, which wait for every pool.
double after_s(const ModelShape& shape, const std::vector<Cluster>& clusters, const Policy& policy) {
  double most = 0;
  for (const Cluster& cluster : clusters) {
    const Estimate e = estimate(shape, cluster, policy);
    double shown = e.optimizer_s + e.offload_s;
    for (const GroupTraffic& row : e.traffic)
      if (row.group == "dp") shown += row.exposed_s;
    most = std::max(most, shown);
  }
  return most;
}

class Best {
 public:
  Best(const ModelShape& shape, const std::vector<Cluster>& clusters) : shape_(shape), clusters_(clusters) {}

  void try_one(Policy policy, int width) {
    const Costs costs = costs_of(shape_, clusters_, policy, width);
    int stages = 0;
    for (const DevicePool& pool : costs.pools) stages += pool.stages;
    if (stages > shape_.layers) return;
    const auto division = divide(costs.layers, stages, costs.pools, policy.num_micro_batches());
    if (!division || division->step_s >= best_) return;
    policy.pp = stages;
    policy.stage_layers = division->layers;
    const auto memories = memories_of(shape_, clusters_, policy, division->pool);
    if (!memories) return;
    const double step = division->step_s + after_s(shape_, clusters_, policy);
    if (step >= best_) return;
    double speed = 0, work = 0;
    for (const DevicePool& pool : costs.pools) speed += pool.stages / pool.slowness;
    for (const DivisionLayer& one : costs.layers) work += one.time_s;
    best_ = step;
    found_ = {policy, division->pool, *memories, step, work * static_cast<double>(policy.num_micro_batches()) / speed};
  }
  std::optional<MixedPlan> found() const {
    return best_ < std::numeric_limits<double>::infinity() ? std::optional(found_) : std::nullopt;
  }

 private:
  const ModelShape& shape_;
  const std::vector<Cluster>& clusters_;
  double best_ = std::numeric_limits<double>::infinity();
  MixedPlan found_;
};

}  // namespace

std::optional<MixedPlan> plan_mixed(const ModelShape& shape, const std::vector<Cluster>& pools, const Policy& base,
                                    const std::vector<int64_t>& micro_batches) {
  if (pools.empty()) throw UsageError("mixed pipeline: got no pools; expected at least 1");
  int least = pools[0].size();
  for (const Cluster& one : pools) least = std::min(least, one.size());
  Best best(shape, pools);
  bool any = false;
  for (int width = 1; width <= least; ++width) {
    if (std::any_of(pools.begin(), pools.end(), [&](const Cluster& c) { return c.size() % width != 0; })) continue;
    for (int tp = 1; tp <= width; ++tp) {
      if (width % tp != 0 || shape.heads % tp != 0) continue;
      for (const int64_t micro : micro_batches) {
        if (base.global_batch % (micro * (width / tp)) != 0) continue;
        any = true;
        for (const RecomputePolicy recompute :
             {RecomputePolicy::none, RecomputePolicy::selective, RecomputePolicy::full})
          for (const int zero : {0, 1}) {
            if (zero == 1 && width == tp) continue;
            Policy policy = base;
            policy.tp = tp;
            policy.dp = width / tp;
            policy.cp = policy.ep = policy.interleave = 1;
            policy.sequence = tp > 1;
            policy.schedule = "1f1b";
            policy.micro_batch = micro;
            policy.recompute = recompute;
            policy.zero = zero;
            best.try_one(policy, width);
          }
      }
    }
  }
  if (!any)
    throw UsageError(fmt::format(
        "a batch of {} sequences cannot be divided over the stage widths that these pools share. Use a multiple of {}",
        base.global_batch, least));
  return best.found();
}

}  // namespace esp::plan
