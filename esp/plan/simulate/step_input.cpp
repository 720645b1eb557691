// Builds the step simulation's input from the cost model: times of pieces, groups and their placement, bytes of
// gradients and weights.
#include <algorithm>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/parallel/mesh.h"
#include "esp/parallel/pp/steps.h"
#include "esp/plan/data_traffic.h"
#include "esp/plan/layers.h"
#include "esp/plan/network.h"
#include "esp/plan/piece_time.h"
#include "esp/plan/pipeline_time.h"
#include "esp/plan/simulate/step.h"
#include "esp/plan/states.h"

namespace esp::plan {
namespace {

double port(const LinkSpec& link) {
  return link.bandwidth * link.efficiency;
}

// Splits the time of a transfer into a fixed part and bytes at the rate of the port. A call that has its port to itself
// then takes exactly the cost model's time.
PortCall port_call(const Cluster& cluster, const TransferTime& transfer, bool across) {
  const double rate = port(across ? cluster.across : cluster.inside);
  PortCall wire{transfer.time_s, transfer.bytes, across};
  if (rate > 0) {
    wire.bytes = std::min(transfer.bytes, transfer.time_s * rate);
    wire.alpha_s = std::max(0.0, transfer.time_s - wire.bytes / rate);
  }
  return wire;
}

// The calls of one chunk's collective: `bytes` in buckets, one call per bucket.
template <typename Collective>
std::vector<PortCall> in_buckets(const EstimateContext& s, Collective collective, const CollectiveGroup& group,
                                 double bytes) {
  std::vector<PortCall> wires;
  if (bytes <= 0 || group.size <= 1) return wires;
  const double limit = s.software.bucket_bytes > 0 ? s.software.bucket_bytes : bytes;
  constexpr double kMost = 256;  // maximum number of buckets per chunk; more do not overlap better
  const double bucket = std::max(limit, bytes / kMost);
  for (double left = bytes; left > 0; left -= bucket)
    wires.push_back(port_call(s.cluster, collective(s.cluster, group, std::min(left, bucket)), spans_domains(group)));
  return wires;
}

double gradient_bytes(const EstimateContext& s) {
  if (s.policy.precision == "fp32" || s.policy.precision == "tf32") return 4;
  return s.policy.gradients_fp32 ? s.software.gradient_bytes : 2;
}

StageInput stage_input(const EstimateContext& s, const RankParameters& held, const Memory& memory, int chunks,
                       int live) {
  const Policy& p = s.policy;
  StageInput stage;
  const double sharing = shard_ranks(p), num_replicas = static_cast<double>(p.dp) * p.cp;
  const CollectiveGroup all = group_of(s.cluster, num_replicas, p.tp), shard = group_of(s.cluster, sharing, p.tp),
                        others = group_of(s.cluster, num_replicas / sharing, p.tp * sharing);
  const double grads = held.dense * gradient_bytes(s) / chunks, values = held.dense * 2 / chunks;
  double updated = held.dense + held.expert;
  if (p.zero == 0 || sharing <= 1) {
    stage.sums = in_buckets(s, all_reduce, all, grads);
  } else {
    // With ZeRO 3 the piece times already contain the scatters and gathers of the layers. Only the all-reduce over
    // shard groups is left.
    if (p.zero < 3) stage.sums = in_buckets(s, all_gather, shard, grads);
    const auto rest = in_buckets(s, all_reduce, others, grads / sharing);
    stage.sums.insert(stage.sums.end(), rest.begin(), rest.end());
    if (p.zero < 3) stage.gathers = in_buckets(s, all_gather, shard, values);
    updated = held.dense / sharing + held.expert / expert_shard_ranks(p);
  }
  stage.update_s = updated * s.software.optimizer_bytes / s.rates.bandwidth;
  stage.activation_bytes = memory.activation / std::max(1, live);
  stage.held_bytes = memory.total() - memory.activation;
  return stage;
}

std::vector<std::vector<double>> slowness(const Policy& p, const std::vector<SlowRank>& stragglers) {
  if (stragglers.empty()) return {};
  std::vector<std::vector<double>> slow(static_cast<size_t>(p.dp), std::vector<double>(static_cast<size_t>(p.pp), 1.0));
  const parallel::MeshShape mesh{p.tp, p.cp, p.dp, p.pp, 1};
  for (const SlowRank& one : stragglers) {
    if (one.rank < 0 || one.rank >= mesh.size())
      throw UsageError(fmt::format("straggler: got rank {}; expected 0 to {}", one.rank, mesh.size() - 1));
    if (!(one.factor >= 0.01 && one.factor <= 1e6))
      throw UsageError(
          fmt::format("straggler: rank {}: got factor {}; expected 0.01 to 1e6, for example 1.5 (50 % slower)",
                      one.rank, one.factor));
    const parallel::Coordinates at = mesh.at(one.rank);
    double& of = slow[static_cast<size_t>(at.dp)][static_cast<size_t>(at.pp)];
    of = std::max(of, one.factor);  // all ranks of the tensor and context group wait for the slowest one
  }
  return slow;
}

}  // namespace

StepInput step_input(const ModelShape& shape, const Cluster& cluster, const Policy& policy,
                     const std::vector<SlowRank>& stragglers) {
  const EstimateContext s(shape, cluster, policy);
  StepInput input;
  StepSchedule actions = step_schedule(policy);
  input.schedule = std::move(actions.schedule);
  input.placement = actions.placement;
  input.synchronised = actions.synchronised;
  const int chunks = input.schedule.shape.chunks;
  input.pieces = stage_times(shape, cluster, policy);
  if (policy.pp > 1) {
    const double stride = boundary_stride(cluster, policy);
    const double divided = policy.sequence || s.software.sharded_messages ? policy.tp : 1;
    const double bytes = s.tokens() * static_cast<double>(shape.hidden) * s.rates.element_bytes / divided;
    input.boundary = port_call(cluster, send(cluster, stride, bytes), stride >= cluster.domain);
    // Each action is lengthened by the exposed message time of the closed form, so that both models give the same time.
    const PipelinePieces pieces = pipeline_pieces(shape, policy);
    const PipelineTime pipe_time = pipeline_time(policy, pieces, input.pieces);
    double hop = 0;
    for (const StageTime& t : input.pieces) hop = std::max(hop, t.send_s);
    const double message_slowdown = std::max(0.0, pipe_time.sending - 2 * hop * (policy.pp - 1)) /
                                    (2.0 * static_cast<double>(policy.num_micro_batches()) * pieces.chunks);
    if (policy.overlap_pp)
      for (StageTime& t : input.pieces) t.forward += message_slowdown, t.backward += message_slowdown;
    // All nodes of a leaf send to the next stage at the same time. The spine has 1/oversubscription of their bandwidth.
    const double leaf = static_cast<double>(cluster.leaf_nodes) * cluster.per_node;
    if (leaf > 0 && stride >= leaf) input.boundary.bytes *= std::max(1.0, cluster.oversubscription);
  }
  const std::vector<RankParameters> held = parameters_by_stage(shape, policy);
  const std::vector<Memory> memory = stage_memories(shape, cluster, policy);
  for (int stage = 0; stage < policy.pp; ++stage) {
    const auto k = static_cast<size_t>(stage);
    input.stages.push_back(stage_input(s, held[k], memory[k], chunks, parallel::peak_live(input.schedule, stage)));
  }
  if (policy.offload != OffloadTarget::none) {
    StageTime slowest;
    for (const StageTime& t : input.pieces)
      if (t.backward + t.weights > slowest.backward + slowest.weights) slowest = t;
    const DataTraffic data = data_traffic(s, slowest, chunks);
    for (StageInput& stage : input.stages) stage.offload_s = data.offload_s, stage.update_s = data.update_s;
  }
  input.overlap_sums = policy.overlap_dp;
  input.overlap_slowdown = policy.overlap_dp ? cluster.processor.efficiency.collective_sms : 0;
  input.overlap_sends = policy.overlap_pp;
  input.inside_bandwidth = port(cluster.inside);
  input.across_bandwidth = port(cluster.across);
  input.step_s = s.software.step_s;
  input.num_replicas = policy.dp;
  input.slowdown = slowness(policy, stragglers);
  return input;
}

}  // namespace esp::plan
