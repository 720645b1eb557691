// One rank's view of ring attention: whose keys are present at each step, and the shapes of the blocks.
#pragma once

#include <vector>

#include "esp/autograd/functions/attention.h"
#include "esp/parallel/cp/context_group.h"

namespace esp::parallel {

// Keys and values travel packed [B, tokens, k | v]; q is read in place from qkv, o has its own rows.
class RingSteps {
 public:
  // The options outlive it.
  RingSteps(const tensor::Tensor& qkv, const autograd::AttentionArgs& options, const ContextGroup& group);

  const int64_t B, row, q_width, kv_width;  // row: elements of a token in qkv
  const int rank, size;
  int64_t T = 0;  // local tokens

  // The rank's tokens present at a step, and the elements of their keys and values. Step `size` is the first again.
  const nn::TokenMap& kv_source(int step) const;
  int64_t kv_count(int step) const { return B * kv_source(step).count() * kv_width; }
  std::vector<AttentionBlock> blocks(int step) const;
  // Its key_lengths are valid until the next call.
  kernel::AttentionShape shape(int step, const AttentionBlock& block);

  // Scratch for the keys and values, or their gradients, of any rank; `pack` copies this rank's own.
  tensor::Tensor kv_buffer(const autograd::Tape& tape, DType type) const;
  void pack(const tensor::Tensor& to, const tensor::Tensor& qkv, const device::Stream& stream) const;

 private:
  const autograd::AttentionArgs& options_;
  std::vector<nn::TokenMap> tokens_;  // by rank
  int64_t most_ = 0;                  // largest number of tokens of a rank
  std::vector<int32_t> lengths_;      // of the keys of a block
};

// Trace span of one step's computation: args step and pairs (of a query and a visible key).
class StepSpan {
 public:
  StepSpan(const ContextGroup& group, const char* name, int step, const std::vector<AttentionBlock>& blocks);

 private:
  obs::Span span_;
};

}  // namespace esp::parallel
