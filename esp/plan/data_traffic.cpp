#include "esp/plan/data_traffic.h"

#include <algorithm>
#include <cmath>

#include "esp/plan/compressed_bytes.h"

namespace esp::plan {
namespace {

// Slowdown of GEMMs during a collective / fraction of multiprocessors that the collective occupies. The factor is above
// 1, because a GEMM with only full waves then needs one more wave (Galvatron measured slowdowns of 1.1 to 1.3).
constexpr double kCutWaves = 2;
constexpr double kHostMemory = 150e9;  // bytes/s at which kernels stream the host memory of a two-socket node

double wire_bytes(const EstimateContext& s) {
  const bool wide = s.policy.precision == "fp32" || s.policy.precision == "tf32";
  const double plain = wide ? 4 : s.policy.gradients_fp32 ? s.software.gradient_bytes : 2;
  return s.policy.compress == "none" ? plain : compressed_value_bytes(s.policy.compress, s.shape, plain);
}

// The ranks over which the gradient of a dense parameter is summed.
CollectiveGroup replica_group(const EstimateContext& s) {
  return group_of(s.cluster, static_cast<double>(s.policy.dp) * s.policy.cp, s.policy.tp);
}
CollectiveGroup shard_group(const EstimateContext& s) {
  return group_of(s.cluster, shard_ranks(s.policy), s.policy.tp);
}
// The ranks that hold the same shard, one in each shard group.
CollectiveGroup cross_shard_group(const EstimateContext& s) {
  const double n = shard_ranks(s.policy);
  return group_of(s.cluster, static_cast<double>(s.policy.dp) * s.policy.cp / n, s.policy.tp * n);
}

// Time of a collective over `bytes` in buckets. Each bucket is one call with its own latency.
template <typename Collective>
TransferTime in_buckets(const EstimateContext& s, Collective collective, const CollectiveGroup& group, double bytes) {
  if (bytes <= 0 || group.size <= 1) return {};
  const double bucket = s.software.bucket_bytes > 0 ? std::min(bytes, s.software.bucket_bytes) : bytes;
  const TransferTime one = collective(s.cluster, group, bucket);
  const double count = bytes / bucket;
  return {count * one.bytes, count * one.time_s};
}

struct GradientSum {
  TransferTime reduce, gather;
};

GradientSum gradient_sum(const EstimateContext& s, double parameters, const CollectiveGroup& all,
                         const CollectiveGroup& shard, const CollectiveGroup& across) {
  const double grads = parameters * wire_bytes(s), weights = parameters * 2;
  GradientSum sum;
  if (s.policy.zero == 0 || shard.size <= 1) {
    sum.reduce = in_buckets(s, all_reduce, all, grads);
    return sum;
  }
  if (s.software.broadcast_call_s > 0) {
    // Software that gives each tensor an owner rank: gradients are all-reduced over all ranks, then each owner
    // broadcasts its tensors.
    sum.reduce = in_buckets(s, all_reduce, all, grads);
    const TransferTime one = broadcast(s.cluster, shard, weights / shard.size);
    sum.gather = {weights, shard.size * (one.time_s + s.software.broadcast_call_s)};
    return sum;
  }
  sum.gather = in_buckets(s, all_gather, shard, weights);
  if (s.software.all_reduced_gradients && s.policy.zero == 1) {
    sum.reduce = in_buckets(s, all_reduce, all, grads);
    return sum;
  }
  sum.reduce = in_buckets(s, all_gather, shard, grads);
  const TransferTime rest = in_buckets(s, all_reduce, across, grads / shard.size);
  sum.reduce.bytes += rest.bytes;
  sum.reduce.time_s += rest.time_s;
  return sum;
}

GroupTraffic row_of(const char* op, const CollectiveGroup& group, const TransferTime& t) {
  return {"dp", op, spans_domains(group) ? "across" : "inside", t.bytes, t.time_s, 0};
}

// Compute time that can hide communication: the last backward hides gradient reduction, the first forward hides weight
// all-gathers.
struct OverlapWindow {
  double backward = 0, forward = 0;
  bool overlaps = true;  // whether the policy overlaps communication with compute
  double slowdown = 0;   // extra kernel seconds per hidden second of communication

  double exposed(double time, double window) const {
    return overlaps ? std::max(0.0, time - window) + slowdown * std::min(time, window) : time;
  }
};

// ZeRO 3. The layer times already contain the exposed all-gathers and reduce-scatters of the layers. So only the
// all-gathers of the embedding and head tables and the all-reduce over shard groups count as exposed here.
void add_units(const EstimateContext& s, double parameters, const OverlapWindow& window,
               std::vector<GroupTraffic>& rows) {
  const CollectiveGroup shard = shard_group(s), across = cross_shard_group(s);
  const double m = s.micro_batches();
  const TransferTime unit = in_buckets(s, all_gather, shard, parameters * 2);
  const double tables = 2.0 * static_cast<double>(s.shape.vocab * s.shape.hidden) / s.policy.tp;
  rows.push_back(row_of("all_gather", shard, {2 * m * unit.bytes, 2 * m * unit.time_s}));
  rows.back().exposed_s = all_gather(s.cluster, shard, tables).time_s * m;
  rows.push_back(row_of("reduce_scatter", shard, {m * unit.bytes, m * unit.time_s}));
  const TransferTime rest = in_buckets(s, all_reduce, across, parameters * wire_bytes(s) / shard.size);
  if (rest.bytes <= 0) return;
  rows.push_back(row_of("all_reduce", across, rest));
  rows.back().exposed_s = window.exposed(rest.time_s, window.backward);
}

// ZeRO 0 to 2: gradient reduction overlaps backward; weight all-gathers overlap the next forward.
void add_sums(const EstimateContext& s, double parameters, const OverlapWindow& window,
              std::vector<GroupTraffic>& rows) {
  const CollectiveGroup all = replica_group(s), shard = shard_group(s);
  const bool by_owner = s.software.broadcast_call_s > 0;
  const GradientSum sum = gradient_sum(s, parameters, all, shard, cross_shard_group(s));
  const bool whole = s.policy.zero == 0 || by_owner || (s.software.all_reduced_gradients && s.policy.zero == 1);
  GroupTraffic reduce = row_of(whole ? "all_reduce" : "reduce_scatter", all, sum.reduce);
  reduce.exposed_s = window.exposed(reduce.time_s, window.backward);
  if (window.overlaps) {  // the last bucket is full only at the end of backward, so its reduction is exposed
    const double bytes = std::max(parameters * wire_bytes(s), 1.0);
    const double last = std::min(1.0, s.software.bucket_bytes / bytes) * reduce.time_s;
    reduce.exposed_s += std::max(0.0, last - std::max(0.0, reduce.time_s - window.backward));
  }
  rows.push_back(reduce);
  if (sum.gather.bytes <= 0) return;
  rows.push_back(row_of(by_owner ? "broadcast" : "all_gather", shard, sum.gather));
  rows.back().exposed_s = by_owner ? sum.gather.time_s : window.exposed(sum.gather.time_s, window.forward);
}

void add_expert_sums(const EstimateContext& s, double parameters, const OverlapWindow& window,
                     std::vector<GroupTraffic>& rows) {
  const double stride = static_cast<double>(s.policy.ep) * expert_tensor(s.policy);
  const CollectiveGroup group = group_of(s.cluster, expert_replicas(s.policy), stride);
  const CollectiveGroup sharing = group_of(s.cluster, expert_shard_ranks(s.policy), stride);
  const GradientSum sum = gradient_sum(s, parameters, group, sharing, group_of(s.cluster, 1, 1));
  rows.push_back(
      row_of("expert_sum", group, {sum.reduce.bytes + sum.gather.bytes, sum.reduce.time_s + sum.gather.time_s}));
  // The reduction of dense gradients overlaps the same backward, so half of the backward time is left for the experts.
  rows.back().exposed_s = window.exposed(rows.back().time_s, 0.5 * window.backward);
}

// Seconds of offload. Gradients go to the host and weights return over each processor's link. The update runs at the
// memory bandwidth of the host, which all processors of the node share.
double offload_s(const EstimateContext& s, double updated) {
  const Policy& p = s.policy;
  const double moved = updated * p.offload_fraction;
  const double host = s.cluster.host.bandwidth > 0 ? s.cluster.host.bandwidth * s.cluster.host.efficiency : 12e9;
  const double sharing = std::max(1, std::min(s.cluster.per_node, p.world()));
  double time = 4 * moved / host + 28 * moved * sharing / kHostMemory;
  if (p.offload == OffloadTarget::file && s.cluster.disk_bandwidth > 0) time += 24 * moved / s.cluster.disk_bandwidth;
  return time;
}

}  // namespace

GatheredTime gathered_layer(const EstimateContext& s, const LayerTime& layer, const RankParameters& held,
                            RecomputePolicy recompute) {
  GatheredTime g{layer.forward_s(), layer.backward_s(recompute)};
  if (s.policy.zero < 3) return g;
  const CollectiveGroup shard = shard_group(s);
  if (shard.size <= 1) return g;
  const double narrow = s.policy.quantised_weights ? 1 : 2;
  const double fine = wire_bytes(s) * (s.policy.quantised_gradients ? 0.25 : 1);
  const CollectiveGroup experts =
      group_of(s.cluster, expert_shard_ranks(s.policy), static_cast<double>(s.policy.ep) * expert_tensor(s.policy));
  const auto gather_s = [&](double each, const CollectiveGroup& group) {
    return all_gather(s.cluster, group, held.dense * each).time_s +
           all_gather(s.cluster, experts, held.expert * each).time_s;
  };
  const double gather = gather_s(narrow, shard), scatter = gather_s(fine, shard);
  double again = gather;
  if (s.policy.secondary_shard)
    again = gather_s(narrow, group_of(s.cluster, std::min<double>(s.cluster.domain, shard.size), s.policy.tp));
  if (s.policy.keep_gathered) again = 0;
  // The all-gather of the next unit runs during this unit's kernels and slows them down.
  const double slowdown = kCutWaves * s.cluster.processor.efficiency.collective_sms;
  const auto overlapped = [&](double kernels, double traffic) {
    return std::max(kernels, traffic) + slowdown * std::min(kernels, traffic);
  };
  if (!s.policy.overlap_dp) {
    g.forward += gather;
    g.backward += again + scatter;
    return g;
  }
  g.forward = overlapped(g.forward, gather);
  g.backward = overlapped(g.backward + layer.weights, again + scatter) - layer.weights;
  return g;
}

DataTraffic data_traffic(const EstimateContext& s, const StageTime& slowest, int chunks) {
  DataTraffic d;
  const Policy& p = s.policy;
  RankParameters most;
  for (const RankParameters& held : parameters_by_stage(s.shape, p))
    if (held.dense + held.expert > most.dense + most.expert) most = held;
  if (p.dp * p.cp > 1) {
    const bool overlapped = p.overlap_dp && !(s.software.sums_after_pipeline && p.pp > 1);
    const OverlapWindow window{(slowest.backward + slowest.weights) * chunks, slowest.forward * chunks, overlapped,
                               s.cluster.processor.efficiency.collective_sms};
    p.zero >= 3 ? add_units(s, most.dense, window, d.rows) : add_sums(s, most.dense, window, d.rows);
    // With ZeRO 3 the layer times already contain the traffic of the experts.
    if (most.expert > 0 && expert_replicas(p) > 1 && p.zero < 3) add_expert_sums(s, most.expert, window, d.rows);
  }
  for (const GroupTraffic& row : d.rows) d.exposed_s += row.exposed_s;
  const double updated =
      p.zero >= 1 ? most.dense / shard_ranks(p) + most.expert / expert_shard_ranks(p) : most.dense + most.expert;
  d.update_s = updated * s.software.optimizer_bytes / s.rates.bandwidth;
  if (p.offload != OffloadTarget::none) {
    d.offload_s = offload_s(s, updated);
    d.update_s *= 1 - p.offload_fraction;
  }
  return d;
}

}  // namespace esp::plan
