// Generations of training software: their mechanisms and host-side costs. Rows are of a program and its date, not of a
// publication; properties of a policy (flash, fused, overlap, recompute) are not repeated here.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace esp::plan {

struct Software {
  std::string_view name, help;
  double host_us;          // host time per kernel launch: a lower bound of a pass is its kernels times this
  double step_s;           // host time per step: batch, norm read-back, logging
  double gradient_bytes;   // of a gradient on the wire
  bool fused_gradients;    // weight gradients accumulate inside their GEMM
  double loss_bytes;       // moved per logit by the loss, both passes
  double optimizer_bytes;  // moved per parameter by clipping, update and casts
  double bucket_bytes;     // of one gradient collective
  double shard_call_s;     // ZeRO 1 with one broadcast per owner: cost per call; 0: one gather
  bool divided_messages;   // pipeline messages are sharded over the tensor group
  bool spares_ends;        // the remainder of an even division goes to inner stages first, not to the first
  bool tensor_async;       // the backward all-reduce of a tensor group runs behind the weight gradient
  bool tensor_pipelined;   // tensor traffic overlaps its GEMMs, unless the policy says otherwise
  bool every_other;        // "selective" keeps the result of every other GEMM, rather than all but the scores
  int kernels;             // generation of its fused attention: 1 (2022), 2 (FlashAttention 2), 3 (the chip's own best)
  double attention;        // its rate over that generation's
  double passes;           // elementwise traffic over that of one kernel per block of operations
  bool narrow_inputs;      // 8-bit GEMMs keep 8-bit inputs for backward, not 16-bit ones
  bool blocking_sends;     // plain pipelines wait for their messages
  bool whole_in_pipeline;  // under ZeRO 3 a pipeline's stages stay gathered, and reduce once per step
  double slack;            // reserved beyond the allocated memory, as a fraction
  double other_bytes;      // outside the allocator: context, libraries' workspaces, communication
  double step_bytes;       // per parameter of a shard, temporary at the update
  double keep;             // kept activations over the count by tensor
  double logit_bytes;      // per logit at the peak of the loss
  bool balanced = true;    // ranks of a context group have equal shares of the causal scores
  bool late_sums = false;  // a pipeline's gradients are summed after its last micro-batch, without overlap
  bool whole_sums = false;    // under ZeRO 1 gradients are all-reduced, not reduced to owners
  bool narrow_gates = false;  // inputs of activations are kept in 8 bits too
  double moment_bytes = 8;    // of Adam's two moments, per parameter
};

std::span<const Software> software();
// UsageError lists the known; empty: the newest.
const Software& software_row(std::string_view name);
// The row of a framework in a publication's spelling ("Megatron-LM (commit …)", "InternEvo v0.2", "llm-foundry"); the
// newest if unrecognised. `flash` and `year` select generations where the name does not.
std::string_view software_of(std::string_view framework, bool flash);

}  // namespace esp::plan
