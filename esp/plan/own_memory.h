// Memory of this program's own runtime, to the byte where its rules fix it: parameters, gradients and optimizer states
// as the strategy shares them, and the peak of a step by walking it without numbers (ghost/).
#pragma once

#include <vector>

#include "esp/device/device.h"
#include "esp/plan/estimate.h"
#include "esp/plan/ghost/tape.h"

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
  device::DeviceKind device = device::DeviceKind::cpu;
};
Memory own_memory(const Shape& shape, const Policy& policy, const OwnPlace& place = {},
                  const OwnMemoryOptions& options = {});
// What a rank asks of its communicators in one step, in order; messages of a handful of numbers (counts, norms, words
// at the end of a step) left out. `first`: of a run's first step, in which stage 3 notes the order of uses.
std::vector<ghost::Call> own_calls(const Shape& shape, const Policy& policy, const OwnPlace& place,
                                   const OwnMemoryOptions& options, bool first);
// Bytes the rank sends for it, by the schedule that its communicator executes.
double bytes_sent(const ghost::Call& call, const Policy& policy, const OwnPlace& place, const char* algorithm);

std::vector<Memory> own_memories(const Shape& shape, const Policy& policy,
                                 const OwnMemoryOptions& options = {});  // by stage

}  // namespace esp::plan
