// Memory of this program's runtime, exact where its rules determine it: parameters, gradients and optimizer states as
// the strategy shards them, and the peak of a step by a dry run (ghost/).
#pragma once

#include <vector>

#include "esp/device/device.h"
#include "esp/plan/estimate.h"
#include "esp/plan/ghost/tape.h"

namespace esp::plan {

// Decoders without experts, in device memory; other models use the counts of activations.h.
bool has_own_memory(const ModelShape& shape, const Policy& policy);

// Peak allocation of one rank; `stage` selects the pipeline rank, `copy` and `tensor` those with chunks of different
// size.
struct OwnPlace {
  int stage = 0, copy = 0, tensor = 0;
};
struct OwnMemoryOptions {
  double bucket_mb = 25, first_bucket_mb = 1;  // MiB, as in [sync]
  int64_t prefetch = 1;
  bool local = false;  // zero2, zero3: micro-batches are accumulated before the scatter
  device::DeviceKind device = device::DeviceKind::cpu;
};
Memory own_memory(const ModelShape& shape, const Policy& policy, const OwnPlace& place = {},
                  const OwnMemoryOptions& options = {});
// The communicator calls of a rank in one step, in order, without messages of a few numbers (counts, norms, the words
// at the end of a step). `first`: the first step of a run, in which stage 3 records the order of uses.
std::vector<ghost::Call> own_calls(const ModelShape& shape, const Policy& policy, const OwnPlace& place,
                                   const OwnMemoryOptions& options, bool first);
// Bytes that the rank sends for it, by the schedule that its communicator executes.
double bytes_sent(const ghost::Call& call, const Policy& policy, const OwnPlace& place, const char* algorithm);

std::vector<Memory> own_memories(const ModelShape& shape, const Policy& policy,
                                 const OwnMemoryOptions& options = {});  // by stage

}  // namespace esp::plan
