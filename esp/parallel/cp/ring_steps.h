// One rank's view of a ring: whose keys are here at which step, and the shapes of the blocks that meet.
#pragma once

#include <vector>

#include "esp/autograd/functions/attention.h"
#include "esp/parallel/cp/group.h"

namespace esp::parallel {

// Keys and values travel packed [B, tokens, k | v]; q lies in place in qkv, o in rows of its own.
class RingSteps {
 public:
  // The options outlive it.
  RingSteps(const tensor::Tensor& qkv, const autograd::AttentionOptions& options, const ContextGroup& group);

  const int64_t B, row, q_width, kv_width;  // row: elements of a token in qkv
  const int rank, size;
  int64_t T = 0;  // tokens held here

  // Whose tokens are here at a step, and how many elements their keys and values are. Step `size` is the first again.
  const nn::TokenMap& visitor(int step) const;
  int64_t kv_count(int step) const { return B * visitor(step).count() * kv_width; }
  std::vector<AttentionBlock> blocks(int step) const;
  // Its key_lengths are valid until the next call.
  kernel::AttentionShape shape(int step, const AttentionBlock& block);

  // Scratch for keys and values, or their gradients, of any rank; this rank's own packed for the journey.
  tensor::Tensor kv_buffer(const autograd::Tape& tape, DType type) const;
  void pack(const tensor::Tensor& to, const tensor::Tensor& qkv, const device::Stream& stream) const;

 private:
  const autograd::AttentionOptions& options_;
  std::vector<nn::TokenMap> tokens_;  // by rank
  int64_t most_ = 0;                  // tokens of the rank that holds most
  std::vector<int32_t> lengths_;      // of the keys of a block
};

// What a rank computes at one step, on the trace: args step and pairs (of a query and a key it sees).
class StepSpan {
 public:
  StepSpan(const ContextGroup& group, const char* name, int step, const std::vector<AttentionBlock>& blocks);

 private:
  obs::Span span_;
};

}  // namespace esp::parallel
