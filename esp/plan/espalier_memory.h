// Memory of Espalier's own training runs, exact to the byte: parameters, gradients and optimizer states as the strategy
// shards them, and the peak of a step from a dry run (dry_run/).
#pragma once

#include <vector>

#include "esp/device/device.h"
#include "esp/plan/dry_run/tape.h"
#include "esp/plan/estimate.h"

namespace esp::plan {

// Whether the exact count supports this run: a decoder (gpt, llama) without experts and without offload. For other runs
// the planner uses the formulas of activations.h.
bool has_espalier_memory(const ModelShape& shape, const Policy& policy);

// Coordinates of a rank: pipeline stage, data-parallel replica, tensor rank. Replica and tensor rank change the result
// only if the sizes of shards differ between ranks.
struct EspalierRank {
  int stage = 0, replica = 0, tensor = 0;
};
struct EspalierMemoryOptions {
  double bucket_mb = 25, first_bucket_mb = 1;  // bucket sizes in MiB, as sync.bucket_mb
  int64_t prefetch = 1;
  bool local = false;  // ZeRO 2 and 3: gradients are accumulated over the micro-batches before one reduce-scatter
  device::DeviceKind device = device::DeviceKind::cpu;
};
Memory espalier_memory(const ModelShape& shape, const Policy& policy, const EspalierRank& rank = {},
                       const EspalierMemoryOptions& options = {});
// The communicator calls of a rank in one step, in order. Calls with only a few numbers are omitted: counts, norms and
// the exchange at the end of a step. `first`: the first step of a run, in which ZeRO 3 records the order of layers.
std::vector<dry_run::CommCall> espalier_calls(const ModelShape& shape, const Policy& policy, const EspalierRank& rank,
                                              const EspalierMemoryOptions& options, bool first);
// Bytes that the rank sends in one call, counted from the schedule that its communicator executes.
double bytes_sent(const dry_run::CommCall& call, const Policy& policy, const EspalierRank& rank, const char* algorithm);

std::vector<Memory> espalier_stage_memories(const ModelShape& shape, const Policy& policy,
                                            // result: peak memory of each stage
                                            const EspalierMemoryOptions& options = {});

}  // namespace esp::plan
