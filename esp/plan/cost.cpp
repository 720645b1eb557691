// What a whole training costs: steps, hours with what failures take, price and energy.
#include <algorithm>

#include "esp/plan/estimate.h"
#include "esp/plan/simulate/failures.h"

namespace esp::plan {
namespace {

constexpr double kRestartS = 600;         // detect, replace, load: minutes
constexpr double kOverheadOfPower = 1.3;  // hosts, network and cooling over the processors' own draw
constexpr double kDiskBandwidth = 1e9;    // per processor, where the cluster does not say

// A checkpoint holds weights and optimizer states once: 14 bytes a parameter, written by all ranks together.
double checkpoint_s(const Estimate& e, const Cluster& c, const Policy& p) {
  const double disk = c.disk_bandwidth > 0 ? c.disk_bandwidth : kDiskBandwidth;
  return 14 * e.parameters / (disk * p.world());
}

}  // namespace

Cost cost_of(const Estimate& e, const Cluster& cluster, const Policy& policy, const Shape& shape, double tokens) {
  Cost cost;
  const double per_step = static_cast<double>(policy.global_batch) * static_cast<double>(shape.seq);
  if (per_step <= 0 || e.step_s <= 0) return cost;
  cost.steps = tokens / per_step;
  if (cluster.mtbf_hours > 0) {
    const double nodes = std::max(1.0, static_cast<double>(policy.world()) / std::max(1, cluster.per_node));
    const FailureModel model{cluster.mtbf_hours * 3600 / nodes, checkpoint_s(e, cluster, policy), kRestartS};
    cost.goodput = expected_goodput(model, daly_interval_s(model));
  }
  cost.hours = cost.steps * e.step_s / 3600 / std::max(cost.goodput, 1e-9);
  cost.gpu_hours = cost.hours * policy.world();
  cost.price = cost.gpu_hours * cluster.processor.price_per_hour;
  cost.energy_kwh = cost.gpu_hours * cluster.processor.watts * kOverheadOfPower / 1000;
  return cost;
}

}  // namespace esp::plan
