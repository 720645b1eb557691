#include "esp/plan/piece_time.h"

#include <algorithm>

namespace esp::plan {
namespace {

// Bytes of the activations that one stage sends to the next for one micro-batch.
double message_bytes(const EstimateContext& s) {
  const double divided = s.policy.sequence || s.software.sharded_messages ? s.policy.tp : 1;
  return s.tokens() * static_cast<double>(s.shape.hidden) * s.rates.element_bytes / divided;
}

LayerKind kind_like(const EstimateContext& s, int64_t layer, bool experts, bool attends_across) {
  LayerKind k;
  k.time = layer_time(s, experts, attends_across);
  const RankParameters held = layer_parameters_on_rank(s.shape, s.policy, layer);
  k.plain = gathered_layer(s, k.time, held,
                           s.policy.recompute == RecomputePolicy::full ? RecomputePolicy::none : s.policy.recompute);
  k.again = gathered_layer(s, k.time, held, s.policy.recompute);
  return k;
}

const LayerKind& kind_of(const EstimateContext& s, const LayerKinds& kinds, int layer) {
  const bool across = layer >= kinds.first_across;
  if (kinds.has_expert && s.shape.has_experts(layer)) return across ? kinds.expert_across : kinds.expert;
  return across ? kinds.across : kinds.dense;
}

// Number of recomputed layers of a piece. policy.recompute_layers counts per stage, so it is divided by the chunks of a
// stage.
int recomputed(const Policy& p, int layers, int chunks) {
  if (p.recompute != RecomputePolicy::full) return 0;
  return p.recompute_layers < 0 ? layers : std::min(layers, (p.recompute_layers + chunks - 1) / chunks);
}

void add(LayerTraffic& to, const LayerTraffic& one, double again) {
  const auto both = [&](PassTime& sum, const PassTime& pass) {
    sum.forward += pass.forward * (1 + again);
    sum.backward += pass.backward;
  };
  both(to.time, one.time);
  both(to.exposed, one.exposed);
  both(to.bytes, one.bytes);
}

void add_row(std::vector<GroupTraffic>& to, const char* group, const char* op, const LayerTraffic& t,
             const CollectiveGroup& where, double times) {
  const double bytes = t.bytes.forward + t.bytes.backward;
  if (bytes <= 0) return;
  to.push_back({group, op, spans_domains(where) ? "across" : "inside", bytes * times,
                (t.time.forward + t.time.backward) * times, (t.exposed.forward + t.exposed.backward) * times});
}

}  // namespace

double boundary_stride(const Cluster& cluster, const Policy& p) {
  const double stride = static_cast<double>(p.tp) * p.cp * p.dp;
  return stride * p.pp > cluster.domain ? std::max<double>(stride, cluster.domain) : stride;
}

LayerKinds kinds_of(const EstimateContext& s) {
  LayerKinds k;
  const int64_t layers = s.shape.layers;
  k.has_expert = s.shape.num_expert_layers() > 0;
  if (s.shape.num_expert_layers() < layers) {
    int64_t plain = 0;
    while (plain + 1 < layers && s.shape.has_experts(plain)) ++plain;
    k.dense = kind_like(s, plain, false, false);
  }
  if (k.has_expert) {
    int64_t first = 0;
    while (first + 1 < layers && !s.shape.has_experts(first)) ++first;
    k.expert = kind_like(s, first, true, false);
  }
  k.first_across = s.shape.first_across();
  if (k.first_across < layers) k.across = kind_like(s, layers - 1, false, true);
  if (k.first_across < layers && k.has_expert) k.expert_across = kind_like(s, layers - 1, true, true);
  return k;
}

std::vector<StageTime> piece_times(const EstimateContext& s, const PipelinePieces& pieces, const LayerKinds& kinds) {
  const Policy& p = s.policy;
  std::vector<StageTime> times(static_cast<size_t>(pieces.count()));
  const double hop = p.pp > 1 ? send(s.cluster, boundary_stride(s.cluster, p), message_bytes(s)).time_s : 0;
  const EmbeddingOrHeadTime front = embedding_time(s), back = head_time(s);
  const int last = pieces.count() - 1;
  for (int i = 0; i <= last; ++i) {
    StageTime& t = times[static_cast<size_t>(i)];
    const int begin = pieces.first[static_cast<size_t>(i)], size = pieces.layers[static_cast<size_t>(i)];
    const int again = recomputed(p, size, pieces.chunks);
    for (int j = 0; j < size; ++j) {
      const LayerKind& kind = kind_of(s, kinds, begin + j);
      const GatheredTime& units = j < again ? kind.again : kind.plain;
      t.forward += units.forward;
      t.backward += units.backward;
      t.weights += kind.time.weights;
    }
    const bool everywhere = p.vocab_parallel_pipeline;
    if (i == 0 || (everywhere && i < p.pp)) {
      t.forward += front.forward;
      t.weights += front.weights;
    }
    if (i == last || (everywhere && i >= last - p.pp + 1)) {
      t.forward += back.forward;
      t.backward += back.backward;
      t.weights += back.weights;
    }
    t.send_s = hop;
  }
  return times;
}

StageTraffic stage_traffic(const EstimateContext& s, const PipelinePieces& pieces, const LayerKinds& kinds, int stage,
                           double sending_s) {
  const Policy& p = s.policy;
  const double m = s.micro_batches();
  StageTraffic result;
  LayerTraffic tensor, context, expert;
  for (int i = 0; i < pieces.count(); ++i) {
    if (pieces.stage_of(i) != stage) continue;
    const int begin = pieces.first[static_cast<size_t>(i)], size = pieces.layers[static_cast<size_t>(i)];
    const int repeated = recomputed(p, size, pieces.chunks);
    for (int j = 0; j < size; ++j) {
      const LayerKind& kind = kind_of(s, kinds, begin + j);
      const LayerTime& time = kind.time;
      const bool again = j < repeated;
      add(tensor, time.tensor, again ? 1 : 0);
      add(context, time.context, again ? 1 : 0);
      add(expert, time.expert, again ? 1 : 0);
      if (p.zero < 3) continue;
      const GatheredTime& units = again ? kind.again : kind.plain;
      const RecomputePolicy how = again                                  ? p.recompute
                                  : p.recompute == RecomputePolicy::full ? RecomputePolicy::none
                                                                         : p.recompute;
      result.exposed_units_s += m * (units.forward + units.backward - time.forward_s() - time.backward_s(how));
    }
  }
  const char* ring = p.context == "ring" ? "send" : p.context == "ulysses" ? "all_to_all" : "all_gather";
  add_row(result.rows, "tp", p.sequence ? "all_gather" : "all_reduce", tensor, s.tensor, m);
  add_row(result.rows, "cp", ring, context, s.context, m);
  add_row(result.rows, "ep", "all_to_all", expert, s.expert, m);
  if (p.pp > 1) {
    const double messages = 2 * m * pieces.chunks;
    const TransferTime one = send(s.cluster, boundary_stride(s.cluster, p), message_bytes(s));
    const char* tier = boundary_stride(s.cluster, p) < s.cluster.domain ? "inside" : "across";
    // The exposed time can exceed the transfer time, because in fill and drain a stage also waits for the recomputation
    // of other stages.
    result.rows.push_back(
        {"pp", "send", tier, messages * one.bytes, std::max(messages * one.time_s, sending_s), sending_s});
  }
  return result;
}

}  // namespace esp::plan
