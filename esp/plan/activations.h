// Activation memory: bytes that forward keeps for backward, counted tensor by tensor (Korthikanti et al. 2022, §4;
// extended to gated MLPs, grouped-query attention, multi-head latent attention and mixture of experts). Also counts the
// micro-batches that a pipeline stage holds at the same time.
#pragma once

#include "esp/plan/estimate.h"
#include "esp/plan/states.h"

namespace esp::plan {

// Activation bytes of one layer for one micro-batch on one rank.
struct ActivationBytes {
  double input = 0;      // input of the layer; full recomputation keeps only this
  double scores = 0;     // s×s attention scores; 0 with fused attention
  double rest = 0;       // all other kept tensors, including the input
  double selective = 0;  // the part of `rest` that selective recomputation keeps
  double working = 0;    // temporary buffers of the layer's backward
  double sum() const { return scores + rest; }
};
ActivationBytes layer_activations(const ModelShape& shape, const Policy& policy, bool experts);
// Bytes of one layer that are kept for backward under a recomputation (activation checkpointing) policy.
double kept_bytes(const ActivationBytes& kept, RecomputePolicy recompute);
// Peak bytes of the head: logits, loss and their gradients.
double head_bytes(const ModelShape& shape, const Policy& policy);

// Peak number of live micro-batches of stage `stage`, that is, with activations in memory. Not an integer if a stage
// has several chunks: a micro-batch in one of v chunks counts 1/v.
double live_micro_batches(const Policy& policy, int stage);

}  // namespace esp::plan
