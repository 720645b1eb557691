// What a forward keeps for its backward, counted tensor by tensor (Korthikanti et al. 2022, §4, and the same count for
// gated layers, grouped heads, latents and experts), and how many micro-batches of it a stage holds at once.
#pragma once

#include "esp/plan/estimate.h"
#include "esp/plan/states.h"

namespace esp::plan {

// Bytes of one layer and one micro-batch on one rank.
struct Kept {
  double input = 0;      // its input: all that full recomputation keeps
  double scores = 0;     // attention's s×s matrices, 0 when fused
  double rest = 0;       // everything else, the input among it
  double selective = 0;  // what selective recomputation leaves of it
  double working = 0;    // made and freed within its backward
  double sum() const { return scores + rest; }
};
Kept kept_by_layer(const Shape& shape, const Policy& policy, bool experts);
// What stays of it under the policy's recomputation.
double kept_bytes(const Kept& kept, Recompute recompute);
// Logits, loss and gradients of the last piece, at their peak.
double head_bytes(const Shape& shape, const Policy& policy);

// Whole-stage micro-batches' worth of activations stage `stage` holds at its peak; fractions where stages hold chunks.
double live_micro_batches(const Policy& policy, int stage);

}  // namespace esp::plan
