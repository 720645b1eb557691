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

// The policy with one stage per layer and one micro-batch in flight per stage. So the estimate of a stage gives the
// time and memory of one layer.
Policy one_stage_per_layer(const ModelShape& shape, Policy policy) {
  policy.pp = static_cast<int>(shape.layers);
  policy.interleave = 1;
  policy.schedule = "gpipe";
  policy.global_batch = policy.micro_batch * policy.dp;
  policy.stage_layers.clear();
  return policy;
}

struct LayerCosts {
  std::vector<DivisionLayer> layers;  // layer times on the devices of the first pool
  std::vector<DevicePool> pools;
};

LayerCosts costs_of(const ModelShape& shape, const std::vector<Cluster>& clusters, const Policy& policy, int width) {
  const Policy each = one_stage_per_layer(shape, policy);
  LayerCosts costs;
  double first = 0;
  for (const Cluster& cluster : clusters) {
    double whole = 0, fixed_bytes = 0, slack = 0;
    const std::vector<StageTime> times = stage_times(shape, cluster, each);
    const std::vector<Memory> memories = stage_memories(shape, cluster, each);
    for (size_t i = 0; i < times.size(); ++i) {
      whole += sum_of(times[i]);
      fixed_bytes = std::max(fixed_bytes, memories[i].buffer + memories[i].other);
      slack = std::max(slack, memories[i].slack / std::max(1.0, memories[i].allocated()));
      if (costs.pools.empty()) costs.layers.push_back({sum_of(times[i]), memories[i].states(), memories[i].activation});
    }
    if (costs.pools.empty()) first = whole;
    const double room = (cluster.processor.memory_bytes - fixed_bytes) / (1 + slack);
    // If no layer fits in the pool, memory_bytes is 1, because 0 would mean unlimited.
    costs.pools.push_back({cluster.size() / width, whole / first, std::max(1.0, room)});
  }
  return costs;
}

// Estimated memory of each stage on its pool. nullopt if a stage does not fit.
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

// Seconds of exposed gradient reduction, optimizer update and offload, on the slowest pool.
double sync_and_update_s(const ModelShape& shape, const std::vector<Cluster>& clusters, const Policy& policy) {
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

class BestMixedPlan {
 public:
  BestMixedPlan(const ModelShape& shape, const std::vector<Cluster>& clusters) : shape_(shape), clusters_(clusters) {}

  void try_one(Policy policy, int width) {
    const LayerCosts costs = costs_of(shape_, clusters_, policy, width);
    int stages = 0;
    for (const DevicePool& pool : costs.pools) stages += pool.stages;
    if (stages > shape_.layers) return;
    const auto division = divide(costs.layers, stages, costs.pools, policy.num_micro_batches());
    if (!division || division->step_s >= best_) return;
    policy.pp = stages;
    policy.stage_layers = division->layers;
    const auto memories = memories_of(shape_, clusters_, policy, division->pool);
    if (!memories) return;
    const double step = division->step_s + sync_and_update_s(shape_, clusters_, policy);
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
  if (pools.empty()) throw UsageError("mixed pipeline: got no pool of devices; expected at least 1");
  int least = pools[0].size();
  for (const Cluster& one : pools) least = std::min(least, one.size());
  BestMixedPlan best(shape, pools);
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
        "mixed pipeline: got a global batch of {}; expected a multiple of micro-batch size × replicas for some stage "
        "width that all pools support. Try a multiple of {}",
        base.global_batch, least));
  return best.found();
}

}  // namespace esp::plan
