// Generations of training software: their mechanisms and their costs on the host. A row describes a program at a date,
// not a publication. Properties that a policy has (flash, fused, overlap, recompute) are not repeated here.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace esp::plan {

struct Software {
  std::string_view name, help;
  double host_us;  // host µs per kernel launch; forward and backward take at least (number of kernels) · host_us
  double step_s;   // host seconds per step: loading the batch, reading the gradient norm, logging
  double gradient_bytes;   // bytes per gradient value on the wire
  bool fused_gradients;    // the weight-gradient GEMM accumulates into the gradient directly
  double loss_bytes;       // bytes moved per logit by the loss, forward and backward
  double optimizer_bytes;  // bytes moved per parameter by clipping, update and casts (see kUpdate)
  double bucket_bytes;     // bytes of a gradient bucket
  // ZeRO 1 with one broadcast per owner rank: extra seconds per broadcast; 0: weights are all-gathered instead
  double broadcast_call_s;
  bool sharded_messages;  // pipeline messages are split over the tensor group
  // remaining layers (not divisible by the stages) go to inner stages first; false: to the first stages
  bool inner_stages_first;
  bool tensor_async;  // backward: the all-reduce of the tensor group overlaps the weight-gradient GEMM
  // with sequence parallelism, traffic of the tensor group overlaps its GEMMs even if overlap_tp is off
  bool tensor_pipelined;
  bool selective_every_other_gemm;  // recompute = selective repeats every other GEMM, not only the attention core
  // Generation of fused attention: 1 (2022), 2 (FlashAttention 2), 3 (the best for the chip).
  int attention_generation;
  double attention_factor;    // attention rate of this software / rate of its generation
  double elementwise_factor;  // elementwise traffic / traffic with one kernel per block of operations
  bool fp8_kept_inputs;       // 8-bit GEMMs keep their inputs for backward in 8 bits; false: in 16 bits
  bool blocking_sends;        // 1F1B and GPipe wait for each message
  // pipeline with ZeRO 3: weights stay gathered during the step, and gradients are reduced once per step
  bool gathered_in_pipeline;
  double slack;                  // (memory that the allocator reserves − allocated memory) / allocated memory
  double other_bytes;            // bytes outside the allocator: CUDA context, library workspaces, communication buffers
  double step_bytes;             // temporary bytes per parameter of the rank's shard during the update
  double activation_factor;      // bytes of kept activations / bytes of the tensor-by-tensor count
  double logit_bytes;            // bytes per logit at the peak of the loss
  bool balanced_context = true;  // causal context parallelism: every rank computes an equal part of the scores
  bool sums_after_pipeline = false;    // pipeline: gradients are summed after the last micro-batch, not during backward
  bool all_reduced_gradients = false;  // ZeRO 1: gradients are all-reduced; false: reduced to their owners
  bool fp8_kept_activations = false;   // inputs of activation functions are also kept in 8 bits
  double moment_bytes = 8;             // bytes per parameter of Adam's two moments
};

std::span<const Software> software();
// The row of this name; for an empty name the newest row. UsageError for an unknown name lists the known ones.
const Software& software_row(std::string_view name);
// Name of the row for a publication's framework ("Megatron-LM (commit …)", "InternEvo v0.2", "llm-foundry"); the newest
// row if it is not recognised. If the name does not contain the generation, `flash` (fused attention) selects it.
std::string_view recognise_software(std::string_view framework, bool flash);

}  // namespace esp::plan
