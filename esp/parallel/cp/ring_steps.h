// The steps of ring attention on one rank: which rank's keys are present at each step, and the shapes of the blocks.
#pragma once

#include <vector>

#include "esp/autograd/functions/attention.h"
#include "esp/parallel/cp/context_group.h"

namespace esp::parallel {

// Keys and values travel packed as [B, tokens, k | v]. q is read in place from qkv; o has separate rows.
class RingSteps {
 public:
  // The options must outlive this object.
  RingSteps(const tensor::Tensor& qkv, const autograd::AttentionArgs& options, const ContextGroup& group);

  const int64_t B, row, q_width, kv_width;  // row: number of elements of a token in qkv
  const int rank, size;
  int64_t T = 0;  // number of local tokens

  // The tokens whose keys are present at a step, and the number of elements of their keys and values. Step `size`
  // equals step 0.
  const nn::TokenMap& kv_source(int step) const;
  int64_t kv_count(int step) const { return B * kv_source(step).count() * kv_width; }
  std::vector<AttentionBlock> blocks(int step) const;
  // Shape of the attention kernel for one block. Its key_lengths stay valid until the next call.
  kernel::AttentionShape shape(int step, const AttentionBlock& block);

  // `kv_buffer`: scratch for the keys and values, or their gradients, of any rank. `pack`: copies this rank's keys and
  // values into it.
  tensor::Tensor kv_buffer(const autograd::Tape& tape, DType type) const;
  void pack(const tensor::Tensor& to, const tensor::Tensor& qkv, const device::Stream& stream) const;

 private:
  const autograd::AttentionArgs& options_;
  std::vector<nn::TokenMap> tokens_;  // indexed by rank
  int64_t max_tokens_ = 0;            // largest number of tokens on any rank
  std::vector<int32_t> lengths_;      // key_lengths of the current block
};

// Trace span of one step's computation, with the step number and the number of (query, visible key) pairs.
class StepSpan {
 public:
  StepSpan(const ContextGroup& group, const char* name, int step, const std::vector<AttentionBlock>& blocks);

 private:
  obs::Span span_;
};

}  // namespace esp::parallel
