// Cost of a complete training run: number of steps, hours including failures, price and energy.
#include <algorithm>

#include "esp/plan/estimate.h"
#include "esp/plan/simulate/failures.h"

namespace esp::plan {
namespace {

constexpr double kRestartS = 600;  // seconds for failure detection, replacement of the node and checkpoint load
// power of the whole cluster (hosts, network, cooling) / power of the processors
constexpr double kOverheadOfPower = 1.3;
constexpr double kDiskBandwidth = 1e9;  // disk bytes/s per processor, if the cluster has no figure

// Seconds to write a checkpoint of 14 bytes per parameter (weights and optimizer states). All ranks write at the same
// time.
double checkpoint_s(const Estimate& e, const Cluster& c, const Policy& p) {
  const double disk = c.disk_bandwidth > 0 ? c.disk_bandwidth : kDiskBandwidth;
  return 14 * e.parameters / (disk * p.world());
}

}  // namespace

TrainingCost cost_of(const Estimate& e, const Cluster& cluster, const Policy& policy, const ModelShape& shape,
                     double tokens) {
  TrainingCost cost;
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
