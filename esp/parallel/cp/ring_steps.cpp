#include "esp/parallel/cp/ring_steps.h"

#include <algorithm>
#include <cmath>

#include "esp/device/gpu.h"
#include "esp/kernel/cuda_dispatch.h"
#include "esp/parallel/cp/strided_rows.h"

namespace esp::parallel {

RingSteps::RingSteps(const tensor::Tensor& qkv, const autograd::AttentionArgs& options, const ContextGroup& group)
    : B(qkv.dim(0)),
      row(qkv.dim(2)),
      q_width(options.heads * options.head_dim),
      kv_width(2 * options.kv_heads * options.head_dim),
      rank(group.rank()),
      size(group.size()),
      options_(options) {
  ESP_CHECK(group.length >= size, "context parallel: got {} tokens on {} ranks; expected at least one token per rank",
            group.length, size);
  for (int r = 0; r < size; ++r) tokens_.push_back(group.tokens(r));
  for (const nn::TokenMap& map : tokens_) max_tokens_ = std::max(max_tokens_, map.count());
  T = tokens_[static_cast<size_t>(rank)].count();
  ESP_CHECK(qkv.shape().rank() == 3 && qkv.dim(1) == T && row == q_width + kv_width,
            "ring attention: got qkv {}; expected [B, {} local tokens, ({} heads + 2·{} KV heads)·{}]",
            qkv.shape().text(), T, options.heads, options.kv_heads, options.head_dim);
  lengths_.resize(options.key_lengths.defined() ? static_cast<size_t>(B) : 0);
}

const nn::TokenMap& RingSteps::kv_source(int step) const {
  return tokens_[static_cast<size_t>((rank + 2 * size - step) % size)];
}

std::vector<AttentionBlock> RingSteps::blocks(int step) const {
  return attention_blocks(kv_source(0), kv_source(step), options_.causal, options_.dropout > 0);
}

kernel::AttentionShape RingSteps::shape(int step, const AttentionBlock& block) {
  const nn::TokenMap& keys = kv_source(step);
  kernel::AttentionShape s;
  s.batch = B;
  s.num_queries = block.num_queries;
  s.num_keys = block.num_keys;
  s.heads = options_.heads;
  s.kv_heads = options_.kv_heads;
  s.head_dim = options_.head_dim;
  s.q = {T * row, row};
  s.k = s.v = {keys.count() * kv_width, kv_width};
  s.o = {T * q_width, q_width};
  s.causal = block.causal;
  s.causal_offset = block.causal_offset;
  s.scale = 1 / std::sqrt(static_cast<double>(options_.head_dim));
  s.lse_row = T;
  s.dropout = options_.dropout;
  s.key = options_.key;
  s.first_batch = options_.first_sequence;
  s.first_head = options_.first_head;
  s.all_heads = options_.all_heads;
  s.first_query = block.first_query;
  s.first_key = block.first_key;
  s.all_queries = s.all_keys = keys.length;
  // Padding is at the end of the sequence, so the padding of a rank is at the end of its tokens.
  if (!lengths_.empty() && !device::is_host_accessible(options_.key_lengths.data()))
    kernel::throw_no_cuda_kernel("ring attention with key_lengths");
  for (size_t b = 0; b < lengths_.size(); ++b)
    lengths_[b] = static_cast<int32_t>(num_before(keys, options_.key_lengths.as<const int32_t>()[b]) - block.key);
  s.key_lengths = lengths_.empty() ? nullptr : lengths_.data();
  return s;
}

tensor::Tensor RingSteps::kv_buffer(const autograd::Tape& tape, DType type) const {
  return tape.scratch({B * max_tokens_ * kv_width}, type);
}

void RingSteps::pack(const tensor::Tensor& to, const tensor::Tensor& qkv, const device::Stream& stream) const {
  copy_rows({to, 0, kv_width}, {qkv, q_width, row}, B * T, kv_width, stream);
}

StepSpan::StepSpan(const ContextGroup& group, const char* name, int step, const std::vector<AttentionBlock>& blocks)
    : span_(group.trace, name, "compute") {
  if (!group.trace) return;
  int64_t pairs = 0;
  for (const AttentionBlock& block : blocks) pairs += block.num_pairs();
  span_.arg("step", step);
  span_.arg("pairs", pairs);
}

}  // namespace esp::parallel
