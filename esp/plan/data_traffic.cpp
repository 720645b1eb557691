#include "esp/plan/data_traffic.h"

#include <algorithm>
#include <cmath>

#include "esp/plan/compressed_bytes.h"

namespace esp::plan {
namespace {

// Slowdown of GEMMs by the multiprocessors of a concurrent collective: tiles that filled their waves need one more
// (Galvatron measured 1.1 to 1.3).
constexpr double kCutWaves = 2;
constexpr double kHostMemory = 150e9;  // bytes/s of a node with two sockets, streaming

double wire_bytes(const Setting& s) {
  const bool wide = s.policy.precision == "fp32" || s.policy.precision == "tf32";
  const double plain = wide ? 4 : s.policy.gradients_fp32 ? s.software.gradient_bytes : 2;
  return s.policy.compress == "none" ? plain : code_bytes(s.policy.compress, s.shape, plain);
}

// The replica group of a dense parameter, and the part of it that shares one set of states.
CollectiveGroup copies(const Setting& s) {
  return group_of(s.cluster, static_cast<double>(s.policy.dp) * s.policy.cp, s.policy.tp);
}
CollectiveGroup sharers(const Setting& s) {
  return group_of(s.cluster, shard_ranks(s.policy), s.policy.tp);
}
// Equal shards of different shard groups.
CollectiveGroup replicas(const Setting& s) {
  const double n = shard_ranks(s.policy);
  return group_of(s.cluster, static_cast<double>(s.policy.dp) * s.policy.cp / n, s.policy.tp * n);
}

// One collective over `bytes` in buckets, each with its latency.
template <typename Collective>
TransferTime in_buckets(const Setting& s, Collective collective, const CollectiveGroup& group, double bytes) {
  if (bytes <= 0 || group.size <= 1) return {};
  const double bucket = s.software.bucket_bytes > 0 ? std::min(bytes, s.software.bucket_bytes) : bytes;
  const TransferTime one = collective(s.cluster, group, bucket);
  const double count = bytes / bucket;
  return {count * one.bytes, count * one.time_s};
}

struct Sum {
  TransferTime reduce, gather;
};

Sum sums_of(const Setting& s, double parameters, const CollectiveGroup& all, const CollectiveGroup& shard,
            const CollectiveGroup& across) {
  const double grads = parameters * wire_bytes(s), weights = parameters * 2;
  Sum sum;
  if (s.policy.zero == 0 || shard.size <= 1) {
    sum.reduce = in_buckets(s, all_reduce, all, grads);
    return sum;
  }
  if (s.software.shard_call_s > 0) {
    // Whole tensors have owners: gradients are summed everywhere, then each owner broadcasts its tensors.
    sum.reduce = in_buckets(s, all_reduce, all, grads);
    const TransferTime one = broadcast(s.cluster, shard, weights / shard.size);
    sum.gather = {weights, shard.size * (one.time_s + s.software.shard_call_s)};
    return sum;
  }
  sum.gather = in_buckets(s, all_gather, shard, weights);
  if (s.software.whole_sums && s.policy.zero == 1) {
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
  return {"dp", op, crosses(group) ? "across" : "inside", t.bytes, t.time_s, 0};
}

// The compute time of the last backward and first forward that can hide communication.
struct Window {
  double backward = 0, forward = 0;
  bool open = true;  // whether the policy overlaps at all
  double slow = 0;   // slowdown of concurrent kernels, as a fraction of the hidden time

  double shown(double time, double window) const {
    return open ? std::max(0.0, time - window) + slow * std::min(time, window) : time;
  }
};

// ZeRO 3: gathers and scatters belong to the layers; tables and the sums over replicas remain.
void add_units(const Setting& s, double parameters, const Window& window, std::vector<GroupTraffic>& rows) {
  const CollectiveGroup shard = sharers(s), across = replicas(s);
  const double m = s.micro_batches();
  const TransferTime unit = in_buckets(s, all_gather, shard, parameters * 2);
  const double tables = 2.0 * static_cast<double>(s.shape.vocab * s.shape.hidden) / s.policy.tp;
  rows.push_back(row_of("all_gather", shard, {2 * m * unit.bytes, 2 * m * unit.time_s}));
  rows.back().exposed_s = all_gather(s.cluster, shard, tables).time_s * m;
  rows.push_back(row_of("reduce_scatter", shard, {m * unit.bytes, m * unit.time_s}));
  const TransferTime rest = in_buckets(s, all_reduce, across, parameters * wire_bytes(s) / shard.size);
  if (rest.bytes <= 0) return;
  rows.push_back(row_of("all_reduce", across, rest));
  rows.back().exposed_s = window.shown(rest.time_s, window.backward);
}

// Gradient sums behind backward, weight gathers behind the next forward.
void add_sums(const Setting& s, double parameters, const Window& window, std::vector<GroupTraffic>& rows) {
  const CollectiveGroup all = copies(s), shard = sharers(s);
  const bool by_owner = s.software.shard_call_s > 0;
  const Sum sum = sums_of(s, parameters, all, shard, replicas(s));
  const bool whole = s.policy.zero == 0 || by_owner || (s.software.whole_sums && s.policy.zero == 1);
  GroupTraffic reduce = row_of(whole ? "all_reduce" : "reduce_scatter", all, sum.reduce);
  reduce.exposed_s = window.shown(reduce.time_s, window.backward);
  if (window.open) {  // the last bucket is full only at the end of backward
    const double bytes = std::max(parameters * wire_bytes(s), 1.0);
    const double last = std::min(1.0, s.software.bucket_bytes / bytes) * reduce.time_s;
    reduce.exposed_s += std::max(0.0, last - std::max(0.0, reduce.time_s - window.backward));
  }
  rows.push_back(reduce);
  if (sum.gather.bytes <= 0) return;
  rows.push_back(row_of(by_owner ? "broadcast" : "all_gather", shard, sum.gather));
  rows.back().exposed_s = by_owner ? sum.gather.time_s : window.shown(sum.gather.time_s, window.forward);
}

void add_expert_sums(const Setting& s, double parameters, const Window& window, std::vector<GroupTraffic>& rows) {
  const double stride = static_cast<double>(s.policy.ep) * expert_tensor(s.policy);
  const CollectiveGroup group = group_of(s.cluster, expert_copies(s.policy), stride);
  const CollectiveGroup sharing = group_of(s.cluster, expert_shard_ranks(s.policy), stride);
  const Sum sum = sums_of(s, parameters, group, sharing, group_of(s.cluster, 1, 1));
  rows.push_back(
      row_of("expert_sum", group, {sum.reduce.bytes + sum.gather.bytes, sum.reduce.time_s + sum.gather.time_s}));
  // Dense parameters use the same window.
  rows.back().exposed_s = window.shown(rows.back().time_s, 0.5 * window.backward);
}

// Gradients down and weights up over each processor's link; the update at the rate of the node's memory, shared by its
// processors.
double offload_s(const Setting& s, double updated) {
  const Policy& p = s.policy;
  const double moved = updated * p.offload_fraction;
  const double host = s.cluster.host.bandwidth > 0 ? s.cluster.host.bandwidth * s.cluster.host.efficiency : 12e9;
  const double sharing = std::max(1, std::min(s.cluster.per_node, p.world()));
  double time = 4 * moved / host + 28 * moved * sharing / kHostMemory;
  if (p.offload == OffloadTarget::file && s.cluster.disk_bandwidth > 0) time += 24 * moved / s.cluster.disk_bandwidth;
  return time;
}

}  // namespace

GatheredTime gathered_layer(const Setting& s, const LayerTime& layer, const HeldParameters& held,
                            RecomputePolicy recompute) {
  GatheredTime g{layer.forward_s(), layer.backward_s(recompute)};
  if (s.policy.zero < 3) return g;
  const CollectiveGroup shard = sharers(s);
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
  // The gather of the next unit runs behind this unit's kernels and slows them.
  const double slow = kCutWaves * s.cluster.processor.efficiency.collective_sms;
  const auto beside = [&](double kernels, double traffic) {
    return std::max(kernels, traffic) + slow * std::min(kernels, traffic);
  };
  if (!s.policy.overlap_dp) {
    g.forward += gather;
    g.backward += again + scatter;
    return g;
  }
  g.forward = beside(g.forward, gather);
  g.backward = beside(g.backward + layer.weights, again + scatter) - layer.weights;
  return g;
}

DataTraffic data_traffic(const Setting& s, const StageTime& slowest, int chunks) {
  DataTraffic d;
  const Policy& p = s.policy;
  HeldParameters most;
  for (const HeldParameters& held : held_by_stage(s.shape, p))
    if (held.dense + held.expert > most.dense + most.expert) most = held;
  if (p.dp * p.cp > 1) {
    const bool beside = p.overlap_dp && !(s.software.late_sums && p.pp > 1);
    const Window window{(slowest.backward + slowest.weights) * chunks, slowest.forward * chunks, beside,
                        s.cluster.processor.efficiency.collective_sms};
    p.zero >= 3 ? add_units(s, most.dense, window, d.rows) : add_sums(s, most.dense, window, d.rows);
    // Under ZeRO 3 this traffic is counted in the layers' units.
    if (most.expert > 0 && expert_copies(p) > 1 && p.zero < 3) add_expert_sums(s, most.expert, window, d.rows);
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
