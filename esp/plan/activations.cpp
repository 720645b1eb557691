#include "esp/plan/activations.h"

#include <algorithm>
#include <cmath>

#include "esp/plan/software.h"

namespace esp::plan {
namespace {

double element_bytes(const Policy& p) {
  return p.precision == "fp32" || p.precision == "tf32" ? 4 : 2;
}

}  // namespace

ActivationBytes layer_activations(const ModelShape& s, const Policy& p, bool experts) {
  const Software& software = software_row(p.software);
  const double t = p.tp, e = element_bytes(p), h = static_cast<double>(s.hidden);
  const double seq = static_cast<double>(s.seq) / p.cp, tokens = static_cast<double>(p.micro_batch) * seq;
  const double rows = p.sequence ? tokens / t : tokens;
  const double heads = std::max(1.0, static_cast<double>(s.heads) / t);
  const double kv_heads = std::max(1.0, static_cast<double>(s.kv_heads > 0 ? s.kv_heads : s.heads) / t);
  const double width = static_cast<double>(s.head_dim > 0 ? s.head_dim : s.hidden / std::max<int64_t>(s.heads, 1));
  const double mask = p.dropout ? 1 : 0;
  // Bytes per element of a GEMM input: 1 if GEMMs take 8 bits and the software keeps the 8-bit inputs, otherwise e.
  const bool eight = p.precision == "fp8" || p.precision == "fp4";
  const double in_bytes = eight && software.fp8_kept_inputs ? 1 : e;

  ActivationBytes k;
  k.input = e * h * (p.checkpoint_sharded ? tokens / t : rows);
  // Attention keeps the norm's input, the GEMM's input, Q K V, the output projection's input, and the dropout mask.
  double rest = (e + in_bytes) * h * rows + mask * h * rows;
  double value = width, dropped = 0;  // dropped: bytes that selective recomputation drops, in addition to the scores
  double returned = 0;                // outputs of the experts, kept for the gradient of the routing weights
  if (s.kv_lora > 0) {
    value = s.v_dim > 0 ? static_cast<double>(s.v_dim) : width;
    const double qk = width + static_cast<double>(s.rope_dim);
    rest += e * tokens * (static_cast<double>(s.q_lora + s.kv_lora) + heads * (2 * qk + value));
    dropped += e * tokens * heads * (2 * qk + value);  // queries, keys and values can be recomputed from the latents
  } else {
    rest += e * tokens * (heads + 2 * kv_heads) * width;
  }
  rest += e * tokens * heads * value;
  // 8-bit copy of the attention output for the projection GEMM; the 16-bit copy stays too
  if (in_bytes < e) rest += in_bytes * tokens * heads * value;
  if (p.flash) {
    rest += 4 * tokens * heads;  // softmax row sums
  } else {
    // Without fused attention the layer keeps the output of softmax. With dropout it also keeps the mask and the masked
    // result.
    const double pairs = heads * tokens * static_cast<double>(s.seq);
    k.scores = pairs * (p.dropout ? 2 * e + 1 : e);
    if (!p.fused) k.scores += pairs * e;  // the unfused softmax also keeps the scaled and masked scores
    k.working += 2 * e * pairs;           // gradients of the scores before and after softmax
  }
  // The feed-forward keeps the norm's input, the GEMM's input, the values before and after the activation function, and
  // the dropout mask.
  rest += (e + in_bytes) * h * rows + mask * h * rows;
  const double in = s.gated ? 2 : 1, unfused = s.gated && !p.fused ? 1 : 0;
  double hidden = tokens * static_cast<double>(s.ffn) / t;
  if (experts) {
    // Rows that this rank's experts process. Expert parallelism does not change the mean number of rows per rank.
    const double routed = tokens * expert_tensor(p) / t * static_cast<double>(s.topk) * p.expert_imbalance;
    hidden = routed * static_cast<double>(s.expert_width()) / expert_tensor(p);
    returned = e * h * routed;
    rest += returned + in_bytes * h * routed +
            4 * rows * static_cast<double>(s.experts);  // permuted rows in both directions, router scores
    if (s.shared_experts > 0)
      hidden +=
          tokens / t * static_cast<double>(s.shared_experts * (s.shared_ffn > 0 ? s.shared_ffn : s.expert_width()));
  }
  rest += hidden * ((software.fp8_kept_activations ? in_bytes : e) * (in + unfused) + in_bytes);
  // Selective recomputation drops the output of the activation function. It also drops the expert outputs, because the
  // experts then return weighted rows.
  if (experts) dropped += in_bytes * hidden + returned;
  k.working += e * (hidden * (in + 1) + 2 * h * rows);
  k.rest = rest * software.activation_factor;
  k.selective = software.selective_every_other_gemm ? k.input + 0.5 * (k.rest - k.input) : k.rest - dropped;
  return k;
}

double kept_bytes(const ActivationBytes& kept, RecomputePolicy recompute) {
  switch (recompute) {
    case RecomputePolicy::full:
      return kept.input;
    case RecomputePolicy::selective:
      return kept.selective;
    case RecomputePolicy::none:
      break;
  }
  return kept.sum();
}

double head_bytes(const ModelShape& s, const Policy& p) {
  const double tokens = static_cast<double>(p.micro_batch * s.seq) / p.cp;
  const double spread = p.vocab_parallel_pipeline ? p.pp : 1;
  return software_row(p.software).logit_bytes * tokens * static_cast<double>(s.vocab) / (p.tp * spread);
}

double live_micro_batches(const Policy& p, int stage) {
  const double m = static_cast<double>(std::max<int64_t>(1, p.num_micro_batches())), P = p.pp, v = p.interleave;
  if (p.pp <= 1) return 1;
  const std::string& name = p.schedule;
  // If the vocabulary of the head is sharded over the stages, every stage holds each micro-batch one action longer.
  const double longer = p.vocab_parallel_pipeline ? 1 : 0;
  double live = P - stage;
  if (name == "gpipe") live = m;
  if (name == "interleaved" && v > 1) live = std::min(m * v, 2 * (P - stage - 1) + (v - 1) * P + 1) / v;
  if (name == "zb-h1" || name == "zb-1p" || name == "zb-v" || name == "v-zb") live = P;
  if (name == "zb-2p" || name == "zb-h2") live = 2 * P - 1;
  if (name == "v-half") live = P / 2 + 1;
  if (name == "v-min") live = P / 3 + 1;
  if (name == "dualpipe") live = P + 1;
  return std::min(live + longer, m);
}

}  // namespace esp::plan
