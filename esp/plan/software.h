// Generations of training software: which mechanisms each has, and what its host side costs. Rows are of a program and
// its time, never of a publication; what a policy says itself (flash, fused, overlap, recompute) is not repeated here.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace esp::plan {

struct Software {
  std::string_view name, help;
  double host_us;          // of the host per kernel it starts: a pass is never shorter than its kernels times this
  double step_s;           // of the host per step: batch, norms read back, logging
  double gradient_bytes;   // of a gradient on the wire
  bool fused_gradients;    // weight gradients accumulate inside their product
  double loss_bytes;       // moved per logit by the loss, both passes
  double optimizer_bytes;  // moved per parameter by clipping, update and casts
  double bucket_bytes;     // of one gradient collective
  double shard_call_s;     // ZeRO 1 by one broadcast per owner: each call's cost; 0: one gather
  bool divided_messages;   // pipeline messages divided over the tensor group
  bool spares_ends;        // layers left over by an even division go to inner stages first, not to the first
  bool tensor_async;       // the backward all-reduce of a tensor group runs behind the weight gradient
  bool tensor_pipelined;   // tensor traffic runs behind the products it belongs to, unless told otherwise
  bool every_other;        // "selective" keeps every other product's result, rather than all but the scores
  int kernels;             // generation of its fused attention: 1 (2022), 2 (FlashAttention 2), 3 (the chip's own best)
  double attention;        // its rate over that generation's
  double passes;           // elementwise traffic over that of a kernel per block of operations
  bool narrow_inputs;      // 8-bit products keep their 8-bit inputs for backward, not the 16-bit ones
  bool blocking_sends;     // plain pipelines wait for their messages
  bool whole_in_pipeline;  // under ZeRO 3 a pipeline's stages stay gathered, and sum once a step
  double slack;            // of what is allocated, reserved beyond it
  double other_bytes;      // outside the allocator: context, libraries' workspaces, communication
  double step_bytes;       // per parameter of a shard, temporary at the update
  double keep;             // of activations kept over the count by tensor
  double logit_bytes;      // per logit at the peak of the loss
  bool balanced = true;    // ranks of a context group have equal shares of the causal scores
  bool late_sums = false;  // a pipeline's gradients are summed after its last micro-batch, beside nothing
  bool whole_sums = false;    // under ZeRO 1 sums go to everybody, not to owners alone
  bool narrow_gates = false;  // what an activation takes is kept in 8 bits too
  double moment_bytes = 8;    // of Adam's two moments, per parameter
};

std::span<const Software> software();
// UsageError lists the known; empty: the newest.
const Software& software_row(std::string_view name);
// The row for a framework as a publication names it ("Megatron-LM (commit …)", "InternEvo v0.2", "llm-foundry"); the
// newest where nothing is recognised. `flash` and `year` tell generations apart where the name does not.
std::string_view software_of(std::string_view framework, bool flash);

}  // namespace esp::plan
