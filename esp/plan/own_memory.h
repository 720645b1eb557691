// Memory of this program's own runtime, to the byte where its rules fix it: parameters, gradients and optimizer states
// as the strategy shares them, and the peak of a step by walking it without numbers (ghost/).
#pragma once

#include <vector>

#include "esp/plan/estimate.h"

namespace esp::plan {

// Decoders without experts, in memory of the device: for the others the counts of activations.h serve.
bool has_own_memory(const Shape& shape, const Policy& policy);

// What one rank allocates at its fullest moment; `stage` tells ranks of a pipeline apart, `copy` and `tensor` those
// that hold chunks of unlike size.
struct OwnPlace {
  int stage = 0, copy = 0, tensor = 0;
};
struct OwnMemoryOptions {
  double bucket_mb = 25, first_bucket_mb = 1;  // MiB, as [sync] has them
  int64_t prefetch = 1;
  bool local = false;  // zero2, zero3: micro-batches add up before they are scattered
};
Memory own_memory(const Shape& shape, const Policy& policy, const OwnPlace& place = {},
                  const OwnMemoryOptions& options = {});
std::vector<Memory> own_memories(const Shape& shape, const Policy& policy);  // by stage

}  // namespace esp::plan
