#include "esp/plan/layers.h"

#include <algorithm>
#include <cmath>

#include "esp/plan/states.h"

namespace esp::plan {
namespace {

// kKernels: number of kernels in the forward of a layer if each block of operations is one kernel. kBackwardKernels:
// number of backward kernels / number of forward kernels.
constexpr double kKernels = 14, kBackwardKernels = 1.8;
// Exposed fraction of traffic that is sent in pieces during its GEMM: the first piece is exposed, and the GEMM is
// slower.
constexpr double kPipelinedExposed = 0.25;
// GEMM rate of unfused attention / normal rate, if the rows of a head are not a multiple of 16 bytes: batched GEMMs
// then do not use tensor cores. In BigScience's runs of 2022 a head dimension of 108 made steps 40 % slower; 104, 112
// and 144 did not.
constexpr double kUnalignedHeadRate = 0.1;

struct LayerSizes {
  double tokens, rows, h, heads, kv_heads, qk, v, e;
  double batch, seq, queries;
};

LayerSizes sizes_of(const EstimateContext& s) {
  const ModelShape& shape = s.shape;
  const double t = s.policy.tp;
  LayerSizes z;
  z.tokens = s.tokens();
  z.rows = s.rows();
  z.h = static_cast<double>(shape.hidden);
  z.heads = std::max(1.0, static_cast<double>(shape.heads) / t);
  z.kv_heads = std::max(1.0, static_cast<double>(shape.kv_heads > 0 ? shape.kv_heads : shape.heads) / t);
  const double width =
      static_cast<double>(shape.head_dim > 0 ? shape.head_dim : shape.hidden / std::max<int64_t>(shape.heads, 1));
  z.qk = width + static_cast<double>(shape.kv_lora > 0 ? shape.rope_dim : 0);
  z.v = shape.kv_lora > 0 && shape.v_dim > 0 ? static_cast<double>(shape.v_dim) : width;
  z.e = s.rates.element_bytes;
  z.batch = static_cast<double>(s.policy.micro_batch);
  z.seq = static_cast<double>(shape.seq);
  z.queries = z.seq / s.policy.cp;
  return z;
}

// Adds one linear layer: the GEMM of `rows` rows with in×out weights, and the GEMMs of its two gradients. `num_experts`
// > 1: grouped GEMMs.
void linear(const EstimateContext& s, LayerTime& to, double rows, double in, double out, double num_experts = 1) {
  const double e = s.rates.element_bytes;
  // The weight gradient is accumulated in fp32 inside the GEMM (fused_gradients), or written in 16 bits and added by a
  // second kernel.
  const double sum_bytes = s.policy.gradients_fp32 ? 8 : 2 * e;
  const double result = s.software.fused_gradients ? sum_bytes : e;
  const bool grouped = num_experts > 1;
  to.forward += gemm_s(s.rates, {rows, out, in, num_experts, e, false, grouped});
  to.backward += gemm_s(s.rates, {rows, in, out, num_experts, e, false, grouped});
  to.weights += gemm_s(s.rates, {in, out, rows, num_experts, result, false, grouped});
  if (!s.software.fused_gradients) to.weights += stream_s(s.rates, num_experts * in * out * (e + sum_bytes));
  if (s.rates.input_bytes < 2) {  // 8-bit GEMMs: inputs are cast from 16 bits, in both storage orders
    // Norms and activation functions write 8 bits directly. Gradients and the output of attention need a separate cast.
    to.forward += stream_s(s.rates, num_experts * (rows * in * 2 + in * out * 4 / s.micro_batches()));
    to.backward += stream_s(s.rates, num_experts * rows * out * 3);
  }
}

void unfused_attention(const EstimateContext& s, const LayerSizes& z, LayerTime& to, double& core) {
  const double heads = z.batch * z.heads, pairs = heads * z.queries * z.seq;
  const Gemm scores{z.queries, z.seq, z.qk, heads, z.e, true}, values{z.queries, z.v, z.seq, heads, z.e, true};
  const Gemm keys{z.seq, z.qk, z.queries, heads, z.e, true};
  const double mask = s.policy.dropout ? 1 : 0, again = s.policy.fused ? 0 : 1;
  // Scale, mask and softmax are one kernel if fused, otherwise three. Dropout reads and writes the scores and stores
  // its mask.
  const double softmax = pairs * (2 * z.e + again * 4 * z.e), dropped = pairs * (2 * z.e + 1) * mask;
  const bool unaligned = std::fmod(z.qk * z.e, 16) != 0;
  const double slow = unaligned && s.rates.multiprocessors > 0 ? 1 / kUnalignedHeadRate : 1;
  core = slow * (gemm_s(s.rates, scores) + gemm_s(s.rates, values)) +
         stream_s(s.rates, softmax + dropped, 1 + mask + 2 * again);
  to.forward += core;
  to.backward += slow * (gemm_s(s.rates, scores) + 2 * gemm_s(s.rates, keys) + gemm_s(s.rates, values)) +
                 stream_s(s.rates, pairs * (3 * z.e + again * 4 * z.e) + dropped, 1 + mask + 2 * again);
}

void attention(const EstimateContext& s, const LayerSizes& z, LayerTime& to) {
  const ModelShape& shape = s.shape;
  if (shape.kv_lora > 0) {
    const auto ql = static_cast<double>(shape.q_lora), kl = static_cast<double>(shape.kv_lora);
    if (ql > 0) linear(s, to, z.rows, z.h, ql);
    linear(s, to, z.tokens, ql > 0 ? ql : z.h, z.heads * z.qk);
    linear(s, to, z.rows, z.h, kl + static_cast<double>(shape.rope_dim));
    linear(s, to, z.tokens, kl, z.heads * (z.qk - static_cast<double>(shape.rope_dim) + z.v));
  } else {
    linear(s, to, z.tokens, z.h, (z.heads + 2 * z.kv_heads) * z.qk);
  }
  double core = 0;
  if (s.policy.flash) {
    const Attention a{z.batch, z.heads, z.kv_heads, z.queries, z.seq, z.qk, z.v, shape.causal};
    // With an unbalanced causal mask, the queries of the last context rank attend to all keys; those of the first rank
    // attend to few.
    const double most = shape.causal && !s.software.balanced_context ? 2 - 1.0 / s.policy.cp : 1;
    core = most * flash_forward_s(s.rates, a);
    to.forward += core;
    to.backward += most * flash_backward_s(s.rates, a);
  } else {
    unfused_attention(s, z, to, core);
  }
  to.core += core;
  linear(s, to, z.tokens, z.heads * z.v, z.h);
}

// Adds norms, residual additions with dropout, rotary embedding and biases, timed by the bytes they move.
void elementwise(const EstimateContext& s, const LayerSizes& z, LayerTime& to) {
  const double mask = s.policy.dropout ? 1 : 0, again = s.policy.fused ? 1 : 2;
  const double stream = z.h * z.rows;
  double forward = stream * 2 * (2 * z.e + again * (3 * z.e + mask));
  double backward = stream * 2 * (3 * z.e + 3 * z.e + mask * (2 * z.e + 1));
  if (!s.shape.learned_positions && s.shape.arch != "bert" && s.shape.arch != "t5") {
    const double rotated = again * 2 * z.e * z.tokens * (z.heads + z.kv_heads) * z.qk;
    forward += rotated;
    backward += rotated;
  }
  if (s.shape.bias) backward += z.e * z.tokens * ((z.heads + 2 * z.kv_heads) * z.qk + z.h);
  to.forward += stream_s(s.rates, forward * s.software.elementwise_factor, 5);
  to.backward += stream_s(s.rates, backward * s.software.elementwise_factor, 7);
}

void activation(const EstimateContext& s, LayerTime& to, double elements) {
  const double in = s.shape.gated ? 2 : 1, again = s.policy.fused ? 1 : 1.6, e = s.rates.element_bytes;
  to.forward += stream_s(s.rates, e * elements * (in + 1) * again * s.software.elementwise_factor);
  to.backward += stream_s(s.rates, e * elements * (2 * in + 1) * again * s.software.elementwise_factor);
}

void perceptron(const EstimateContext& s, LayerTime& to, double rows, double width, double num_experts = 1) {
  const auto h = static_cast<double>(s.shape.hidden);
  linear(s, to, rows, h, (s.shape.gated ? 2 : 1) * width, num_experts);
  activation(s, to, num_experts * rows * width);
  linear(s, to, rows, width, h, num_experts);
}

void expert_layer(const EstimateContext& s, const LayerSizes& z, LayerTime& to) {
  const ModelShape& shape = s.shape;
  const int divided = expert_tensor(s.policy);
  const double own = z.tokens * divided / s.policy.tp;  // number of tokens that this rank routes
  const double routed = own * static_cast<double>(shape.topk) * s.policy.expert_imbalance;
  const double local = std::max(1.0, static_cast<double>(shape.experts) / s.policy.ep);
  linear(s, to, own, z.h, static_cast<double>(shape.experts));
  // Routing: top-k of the scores, sorting rows by expert, and the weighted sum of the returned rows.
  to.forward += stream_s(s.rates, routed * z.h * z.e * 4 + own * static_cast<double>(shape.experts) * 12, 8);
  to.backward += stream_s(s.rates, routed * z.h * z.e * 5 + own * static_cast<double>(shape.experts) * 12, 8);
  perceptron(s, to, routed / local, static_cast<double>(shape.expert_width()) / divided, local);
  if (shape.shared_experts > 0)
    perceptron(
        s, to, z.tokens,
        static_cast<double>(shape.shared_experts * (shape.shared_ffn > 0 ? shape.shared_ffn : shape.expert_width())) /
            s.policy.tp);
}

// Adds tensor-parallel traffic. A layer has two tensor-parallel regions (attention and feed-forward), three with
// cross-attention, or one if the experts exchange their rows. Each region needs all-reduces. With sequence parallelism
// it needs all-gathers and reduce-scatters instead, and one more all-gather for the weight gradients.
void tensor_traffic(const EstimateContext& s, const LayerSizes& z, LayerTime& to, double regions) {
  if (s.policy.tp <= 1) return;
  const double whole = z.e * z.tokens * z.h;
  const TransferTime reduce = all_reduce(s.cluster, s.tensor, whole), gather = all_gather(s.cluster, s.tensor, whole);
  LayerTraffic& t = to.tensor;
  const bool pipelined = s.policy.overlap_tp || (s.policy.sequence && s.software.tensor_pipelined);
  const double exposed = pipelined ? kPipelinedExposed : 1;
  // slowdown of kernels that run during a collective
  const double hidden = s.cluster.processor.efficiency.collective_sms;
  if (s.policy.sequence) {
    t.time = {regions * 2 * gather.time_s, regions * 3 * gather.time_s};
    t.bytes = {regions * 2 * gather.bytes, regions * 3 * gather.bytes};
    const double behind = s.software.tensor_async ? 2 * gather.time_s : 0;
    t.exposed.forward = regions * 2 * gather.time_s * exposed;
    t.exposed.backward = regions * ((3 * gather.time_s - behind) * exposed + behind * hidden);
  } else {
    t.time = {regions * reduce.time_s, regions * reduce.time_s};
    t.bytes = {regions * reduce.bytes, regions * reduce.bytes};
    t.exposed.forward = t.time.forward * exposed;
    t.exposed.backward = t.time.backward * (s.software.tensor_async ? hidden : exposed);
  }
}

void context_traffic(const EstimateContext& s, const LayerSizes& z, LayerTime& to) {
  const double c = s.policy.cp;
  if (c <= 1) return;
  // bytes of the keys and values of one rank
  const double blocks = z.batch * z.queries * z.e * z.kv_heads * (z.qk + z.v);
  LayerTraffic& t = to.context;
  if (s.policy.context == "ulysses") {
    const double each = z.batch * z.queries * z.e * (z.heads + z.kv_heads) * (z.qk + z.v);
    const TransferTime one = all_to_all(s.cluster, s.context, each);
    t.time = {one.time_s, one.time_s};
    t.bytes = {one.bytes, one.bytes};
    t.exposed = t.time;
    return;
  }
  if (s.policy.context == "allgather") {
    const TransferTime one = all_gather(s.cluster, s.context, blocks * c);
    t.time = {one.time_s, 2 * one.time_s};
    t.bytes = {one.bytes, 2 * one.bytes};
    t.exposed = t.time;
    return;
  }
  const TransferTime hop = send(s.cluster, spans_domains(s.context) ? s.cluster.domain : 1, blocks);
  t.time = {(c - 1) * hop.time_s, 2 * (c - 1) * hop.time_s};
  t.bytes = {(c - 1) * hop.bytes, (2 * c - 1) * hop.bytes};
  // Each ring step sends while attention works on the previous block of keys and values.
  const double core = to.core / c;
  const double over = s.policy.overlap_cp ? std::max(0.0, hop.time_s - core) : hop.time_s;
  const double over_back = s.policy.overlap_cp ? std::max(0.0, 2 * hop.time_s - 2.5 * core) : 2 * hop.time_s;
  t.exposed = {(c - 1) * over + hop.time_s * 0.1, (c - 1) * over_back + hop.time_s * 0.1};
}

void expert_traffic(const EstimateContext& s, const LayerSizes& z, LayerTime& to) {
  if (s.policy.ep <= 1) return;
  const double own = z.tokens * expert_tensor(s.policy) / s.policy.tp;
  const double bytes = own * static_cast<double>(s.shape.topk) * z.h * z.e * s.policy.expert_imbalance;
  TransferTime one = all_to_all(s.cluster, s.expert, bytes);
  if (s.policy.expert_nodes > 0 && spans_domains(s.expert)) {
    // Node-limited routing (DeepSeek-V2, 2024): a token is sent once to each domain and forwarded inside the domain to
    // its experts.
    const double domains = std::min<double>(s.policy.expert_nodes, s.expert.domains);
    const double once = std::min(1.0, domains / static_cast<double>(s.shape.topk));
    const TransferTime far = all_to_all(s.cluster, s.expert, bytes * once);
    const TransferTime near = all_to_all(s.cluster, {s.expert.inside, s.expert.inside, 1}, bytes);
    // Forwarding overlaps receiving, so the slower of the two determines the time.
    one = {far.bytes + near.bytes, std::min(one.time_s, std::max(far.time_s, near.time_s))};
  }
  to.expert.time = {2 * one.time_s, 2 * one.time_s};
  to.expert.bytes = {2 * one.bytes, 2 * one.bytes};
  // A bidirectional pipeline overlaps the all-to-alls of one direction with the GEMMs of the other.
  const double exposed = s.policy.overlap_ep || s.policy.schedule == "dualpipe" ? kPipelinedExposed : 1;
  to.expert.exposed = {2 * one.time_s * exposed, 2 * one.time_s * exposed};
}

}  // namespace

EstimateContext::EstimateContext(const ModelShape& a_shape, const Cluster& a_cluster, const Policy& a_policy)
    : shape(a_shape),
      cluster(a_cluster),
      policy(a_policy),
      software(software_row(a_policy.software)),
      rates(processor_rates(a_cluster.processor, a_policy.precision)),
      tensor(group_of(a_cluster, a_policy.tp, 1)),
      context(group_of(a_cluster, a_policy.cp, a_policy.tp)),
      // If experts are not sharded over the tensor group, the expert group includes the tensor ranks, and its ranks are
      // consecutive.
      expert(group_of(a_cluster, a_policy.ep, expert_tensor(a_policy))) {
  const double attention =
      software.attention_factor * attention_share(a_cluster.processor, software.attention_generation);
  rates.attention_forward *= attention;
  rates.attention_backward *= attention;
}

double EstimateContext::tokens() const {
  return static_cast<double>(policy.micro_batch * shape.seq) / policy.cp;
}

double EstimateContext::rows() const {
  return policy.sequence ? tokens() / policy.tp : tokens();
}

double EstimateContext::micro_batches() const {
  return static_cast<double>(std::max<int64_t>(1, policy.num_micro_batches()));
}

double LayerTime::forward_s() const {
  return forward + tensor.exposed.forward + context.exposed.forward + expert.exposed.forward;
}

double LayerTime::backward_s(RecomputePolicy recompute) const {
  const double own = backward + tensor.exposed.backward + context.exposed.backward + expert.exposed.backward;
  if (recompute == RecomputePolicy::full) return own + forward_s();
  if (recompute == RecomputePolicy::selective) return own + repeated;
  return own;
}

LayerTime layer_time(const EstimateContext& s, bool experts, bool attends_across) {
  const LayerSizes z = sizes_of(s);
  LayerTime t;
  attention(s, z, t);
  if (attends_across) attention(s, z, t);
  if (experts) {
    expert_layer(s, z, t);
    expert_traffic(s, z, t);
  } else {
    perceptron(s, t, z.tokens, static_cast<double>(s.shape.ffn) / s.policy.tp);
  }
  elementwise(s, z, t);
  const double kernels = kKernels * s.software.elementwise_factor + (experts ? 12 : 0),
               host = s.software.host_us * 1e-6;
  t.forward = std::max(t.forward, kernels * host);
  t.backward = std::max(t.backward, kernels * kBackwardKernels * 0.7 * host);
  t.weights = std::max(t.weights, kernels * kBackwardKernels * 0.3 * host);
  // Forward time that selective recomputation repeats: half of the layer (every other GEMM and the operations between
  // them), or only the attention core.
  t.repeated = s.software.selective_every_other_gemm ? 0.5 * (t.forward - t.core) : t.core;
  tensor_traffic(s, z, t, experts && s.policy.ep > 1 && expert_tensor(s.policy) == 1 ? 1 : attends_across ? 3 : 2);
  context_traffic(s, z, t);
  if (!s.software.selective_every_other_gemm) t.repeated += t.context.exposed.forward;
  return t;
}

EmbeddingOrHeadTime embedding_time(const EstimateContext& s) {
  const double bytes = s.tokens() * static_cast<double>(s.shape.hidden) * s.rates.element_bytes;
  const double spread = s.policy.vocab_parallel_pipeline ? s.policy.pp : 1;
  EmbeddingOrHeadTime t;
  t.forward =
      stream_s(s.rates, (2 + (s.policy.dropout ? 2 : 0) + (s.shape.learned_positions ? 3 : 0)) * bytes, 3) / spread;
  t.weights = stream_s(s.rates, 4 * bytes, 3) / spread;
  const TransferTime sum =
      s.policy.sequence ? all_gather(s.cluster, s.tensor, bytes) : all_reduce(s.cluster, s.tensor, bytes);
  t.forward += sum.time_s;
  return t;
}

EmbeddingOrHeadTime head_time(const EstimateContext& s) {
  const double spread = s.policy.vocab_parallel_pipeline ? s.policy.pp : 1;
  const double tokens = s.tokens(), h = static_cast<double>(s.shape.hidden), e = s.rates.element_bytes;
  const double columns = static_cast<double>(s.shape.vocab) / (s.policy.tp * spread);
  EmbeddingOrHeadTime t;
  t.forward = gemm_s(s.rates, {tokens, columns, h, 1, e, true}) +
              stream_s(s.rates, 0.6 * s.software.loss_bytes * tokens * columns + 2 * e * s.rows() * h, 6);
  t.backward = gemm_s(s.rates, {tokens, h, columns, 1, e, true}) +
               stream_s(s.rates, 0.4 * s.software.loss_bytes * tokens * columns + 3 * e * s.rows() * h, 4);
  t.weights = gemm_s(s.rates, {h, columns, tokens, 1, s.policy.gradients_fp32 ? 8 : 2 * e, true});
  if (s.policy.tp > 1) {
    const double whole = e * tokens * h;
    t.forward += s.policy.sequence ? all_gather(s.cluster, s.tensor, whole).time_s : 0;
    t.forward += 3 * all_reduce(s.cluster, s.tensor, 4 * tokens).time_s;
    t.backward += s.policy.sequence ? all_gather(s.cluster, s.tensor, whole).time_s
                                    : all_reduce(s.cluster, s.tensor, whole).time_s;
  }
  // Every stage computes a part of the logits: hidden states are broadcast to all stages, and partial gradients return.
  if (spread > 1) {
    const TransferTime rows =
        broadcast(s.cluster, group_of(s.cluster, spread, static_cast<double>(s.policy.tp) * s.policy.cp * s.policy.dp),
                  e * s.rows() * h);
    t.forward += 0.5 * rows.time_s;
    t.backward += 0.5 * rows.time_s;
  }
  return t;
}

}  // namespace esp::plan
