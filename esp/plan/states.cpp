#include "esp/plan/states.h"

#include <algorithm>

#include "esp/plan/software.h"

namespace esp::plan {
namespace {

bool is_folded(const std::string& schedule) {
  return schedule == "zb-v" || schedule == "v-half" || schedule == "v-min" || schedule == "v-zb";
}

double local_heads(int64_t heads, int tp) {
  return std::max(1.0, static_cast<double>(heads) / tp);
}

// Attention parameters on one of tp ranks. Weights and the biases of column-parallel layers are sharded. The bias of
// the row-parallel layer and the norms of the latents are replicated.
double attention_parameters_on_rank(const ModelShape& s, int tp) {
  const double h = static_cast<double>(s.hidden), t = tp;
  const double width = static_cast<double>(s.head_dim > 0 ? s.head_dim : s.hidden / std::max<int64_t>(s.heads, 1));
  if (s.kv_lora > 0) {
    const double value = s.v_dim > 0 ? static_cast<double>(s.v_dim) : width, heads = static_cast<double>(s.heads) / t;
    const double query = heads * (width + static_cast<double>(s.rope_dim)), ql = static_cast<double>(s.q_lora),
                 kl = static_cast<double>(s.kv_lora);
    const double queries = ql > 0 ? h * ql + ql + ql * query : h * query;
    return queries + h * (kl + static_cast<double>(s.rope_dim)) + kl + kl * heads * (width + value) + heads * value * h;
  }
  const double q = local_heads(s.heads, tp) * width;
  const double kv = local_heads(s.kv_heads > 0 ? s.kv_heads : s.heads, tp) * width;
  const bool bias = s.bias || s.qkv_bias;
  return h * (q + 2 * kv) + (bias ? q + 2 * kv : 0) + q * h + (s.bias ? h : 0);
}

double mlp_parameters_on_rank(const ModelShape& s, int64_t width, double t) {
  const double h = static_cast<double>(s.hidden), f = static_cast<double>(width) / t;
  const double in = s.gated ? 2 : 1;
  return (in + 1) * h * f + (s.bias ? in * f + h : 0);
}

}  // namespace

PipelinePieces pipeline_pieces(const ModelShape& shape, const Policy& policy) {
  PipelinePieces p;
  p.stages = std::max(1, policy.pp);
  p.folded = is_folded(policy.schedule);
  p.chunks = p.folded ? 2 : std::max(1, policy.interleave);
  if (p.stages == 1) p.chunks = 1, p.folded = false;
  const int n = p.count();
  if (static_cast<int>(policy.stage_layers.size()) == n) {
    p.layers = policy.stage_layers;
  } else {
    const int each = static_cast<int>(shape.layers) / n, rest = static_cast<int>(shape.layers) % n;
    p.layers.assign(static_cast<size_t>(n), each);
    const int skipped = n > 2 && rest > 0 && rest <= n - 2 && software_row(policy.software).inner_stages_first ? 1 : 0;
    for (int i = 0; i < rest; ++i) ++p.layers[static_cast<size_t>(i + skipped)];
  }
  p.first.reserve(static_cast<size_t>(n));
  int at = 0;
  for (const int layers : p.layers) p.first.push_back(at), at += layers;
  return p;
}

std::vector<int> balanced_layers(const ModelShape& s, const Policy& policy) {
  Policy even = policy;
  even.stage_layers.clear();
  const int n = pipeline_pieces(s, even).count();
  // Cost of the head, in layers: (GEMM work of the head per token) / (work of a layer's weights and attention scores
  // per token).
  const double layer = s.active_parameters() > 0
                           ? (s.active_parameters() - s.embedding_parameters() - s.head_parameters()) /
                                 static_cast<double>(std::max<int64_t>(1, s.layers))
                           : 1;
  const double pairs = static_cast<double>(s.seq * s.hidden);
  const double worth = static_cast<double>(s.vocab * s.hidden) / (layer + pairs);
  std::vector<double> load(static_cast<size_t>(n), 0.0);
  std::vector<int> layers(static_cast<size_t>(n), 0);
  load.back() = worth;
  for (int64_t i = 0; i < s.layers; ++i) {
    // Among equally loaded stages the last one gets the layer, because later stages hold fewer micro-batches.
    const auto found = std::min_element(load.rbegin(), load.rend());
    const size_t least = static_cast<size_t>(load.rend() - found) - 1;
    ++layers[least];
    load[least] += 1;
  }
  return layers;
}

int expert_tensor(const Policy& policy) {
  return policy.expert_tp > 0 ? policy.expert_tp : policy.ep > 1 ? 1 : policy.tp;
}

RankParameters layer_parameters_on_rank(const ModelShape& s, const Policy& policy, int64_t layer) {
  RankParameters held;
  held.dense = attention_parameters_on_rank(s, policy.tp) + 2 * s.norm_parameters();
  if (layer >= s.first_across()) held.dense += attention_parameters_on_rank(s, policy.tp) + s.norm_parameters();
  if (!s.has_experts(layer)) {
    held.dense += mlp_parameters_on_rank(s, s.ffn, policy.tp);
    return held;
  }
  held.dense += static_cast<double>(s.hidden * s.experts);  // weights of the router
  held.dense += static_cast<double>(s.shared_experts) *
                mlp_parameters_on_rank(s, s.shared_ffn > 0 ? s.shared_ffn : s.expert_width(), policy.tp);
  held.expert =
      static_cast<double>(s.experts) / policy.ep * mlp_parameters_on_rank(s, s.expert_width(), expert_tensor(policy));
  return held;
}

std::vector<RankParameters> parameters_by_stage(const ModelShape& s, const Policy& policy) {
  std::vector<RankParameters> held(static_cast<size_t>(std::max(1, policy.pp)));
  if (s.layers == 0 || s.hidden == 0) {  // only the parameter count is known
    for (RankParameters& h : held) h.dense = s.given_parameters / (policy.tp * policy.pp);
    return held;
  }
  const PipelinePieces pieces = pipeline_pieces(s, policy);
  const int64_t across = s.first_across();
  RankParameters kinds[2][2];  // [has experts][has cross-attention]
  for (int e = 0; e < 2; ++e)
    for (int c = 0; c < 2; ++c) kinds[e][c].dense = -1;
  for (int i = 0; i < pieces.count(); ++i) {
    RankParameters& to = held[static_cast<size_t>(pieces.stage_of(i))];
    const int begin = pieces.first[static_cast<size_t>(i)];
    for (int layer = begin; layer < begin + pieces.layers[static_cast<size_t>(i)]; ++layer) {
      RankParameters& kind = kinds[s.has_experts(layer)][layer >= across];
      if (kind.dense < 0) kind = layer_parameters_on_rank(s, policy, layer);
      to += kind;
    }
  }
  const double h = static_cast<double>(s.hidden), table = static_cast<double>(s.vocab) * h / policy.tp;
  const double spread = policy.vocab_parallel_pipeline ? policy.pp : 1;
  RankParameters& front = held[static_cast<size_t>(pieces.stage_of(0))];
  RankParameters& back = held[static_cast<size_t>(pieces.stage_of(pieces.count() - 1))];
  const double places = s.embedding_parameters() - static_cast<double>(s.vocab) * h;
  front.dense += places + s.other_parameters;
  back.dense += s.norm_parameters();
  // A tied table is stored twice if the first and the last piece are on different stages.
  const bool second = !s.tied || &front != &back;
  if (spread > 1) {
    for (RankParameters& each : held) each.dense += (second ? 2 : 1) * table / spread;
  } else {
    front.dense += table;
    if (second) back.dense += table;
  }
  if (policy.schedule == "dualpipe" && policy.pp > 1) {  // in a bidirectional pipeline every rank holds two stages
    std::vector<RankParameters> twice = held;
    for (size_t k = 0; k < held.size(); ++k) twice[k] += held[held.size() - 1 - k];
    return twice;
  }
  return held;
}

double shard_ranks(const Policy& policy) {
  const double all = static_cast<double>(policy.dp) * policy.cp;
  return policy.shard_group > 0 ? std::min<double>(policy.shard_group, all) : all;
}

double expert_replicas(const Policy& policy) {
  return std::max(1.0, static_cast<double>(policy.dp) * policy.cp * policy.tp / (policy.ep * expert_tensor(policy)));
}

double expert_shard_ranks(const Policy& policy) {
  return std::min(expert_replicas(policy), std::max(1.0, shard_ranks(policy)));
}

StateBytes state_bytes(const Policy& policy) {
  StateBytes b;
  const bool wide = policy.precision == "fp32" || policy.precision == "tf32";
  b.parameter = wide ? 4 : 2;
  b.gradient = wide || policy.gradients_fp32 ? 4 : 2;
  const double moments = policy.optimizer == "sgd" ? 0 : policy.moment_bytes;
  b.optimizer = (wide ? 0 : policy.master_bytes) + moments;
  // ZeRO 3 with fp32 gradients: the rank's shard is the fp32 master copy. 16-bit weights exist only while they are
  // gathered.
  if (!wide && policy.zero >= 3 && policy.gradients_fp32 && policy.master_bytes == 4) {
    b.parameter = policy.master_bytes;
    b.optimizer = moments;
  }
  return b;
}

Memory states_of(const RankParameters& held, const Policy& policy) {
  const StateBytes each = state_bytes(policy);
  const double n = shard_ranks(policy), e = expert_shard_ranks(policy);
  const auto share = [&](int from) {
    return policy.zero >= from ? held.dense / n + held.expert / e : held.dense + held.expert;
  };
  Memory m;
  m.optimizer = each.optimizer * share(1);
  m.gradient = each.gradient * share(2);
  m.parameter = each.parameter * share(3);
  if (policy.secondary_shard) m.parameter += 2 * held.dense / std::min(n, 8.0);
  if (policy.offload != OffloadTarget::none) {
    const double moved = (m.optimizer + (policy.zero >= 2 ? m.gradient : 0)) * policy.offload_fraction;
    (policy.offload == OffloadTarget::host ? m.host : m.file) += moved;
    m.optimizer -= m.optimizer * policy.offload_fraction;
    if (policy.zero >= 2) m.gradient -= m.gradient * policy.offload_fraction;
  }
  return m;
}

}  // namespace esp::plan
