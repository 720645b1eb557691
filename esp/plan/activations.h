// Activation memory: what forward keeps for backward, counted tensor by tensor (Korthikanti et al. 2022, §4, extended
// to gated layers, grouped heads, latents and experts), and the number of micro-batches a stage holds at once.
#pragma once

#include "esp/plan/estimate.h"
#include "esp/plan/states.h"

namespace esp::plan {

// Bytes of one layer and one micro-batch on one rank.
struct ActivationBytes {
  double input = 0;      // its input: all that full recomputation keeps
  double scores = 0;     // attention's s×s matrices; 0 with fused attention
  double rest = 0;       // everything else, including the input
  double selective = 0;  // what selective recomputation keeps of it
  double working = 0;    // allocated and freed within its backward
  double sum() const { return scores + rest; }
};
ActivationBytes layer_activations(const ModelShape& shape, const Policy& policy, bool experts);
// Kept bytes under the policy's recomputation.
double kept_bytes(const ActivationBytes& kept, RecomputePolicy recompute);
// Peak of logits, loss and gradients of the last piece.
double head_bytes(const ModelShape& shape, const Policy& policy);

// Peak activations of stage `stage`, in micro-batches of a whole stage; fractional where stages hold several chunks.
double live_micro_batches(const Policy& policy, int stage);

}  // namespace esp::plan
