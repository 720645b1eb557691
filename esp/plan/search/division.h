// Division of layers over pipeline stages by dynamic programming, for uneven layers (a stem, a head, experts in some),
// devices of several kinds, and their memory limits.
//
// A step of m micro-batches takes Σ t_k + (m − 1)·max t_k, where t_k is the time of stage k per micro-batch: the first
// fills the pipeline, the others follow at the pace of the slowest stage. For each candidate pace, a walk over (layers
// done, devices used of each kind) finds the least sum with no stage above the pace; the result is exact for that
// objective.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace esp::plan {

struct DivisionLayer {
  double time_s = 0;        // forward and backward per micro-batch
  double state_bytes = 0;   // permanent
  double active_bytes = 0;  // per micro-batch in flight
};

// Devices of one kind, counted in stages.
struct DevicePool {
  int stages = 0;
  double slowness = 1;      // factor on layer times
  double memory_bytes = 0;  // 0: unlimited
};

struct LayerDivision {
  std::vector<int> layers;  // of each stage
  std::vector<int> pool;    // pool of each stage
  double step_s = 0, slowest_stage_s = 0;
};

// `stages`: at most the sum over pools; none: no feasible division. Stage k of P holds min(P − k, m) micro-batches
// (1F1B). UsageError: more stages than layers, or than the pools have.
std::optional<LayerDivision> divide(std::span<const DivisionLayer> layers, int stages,
                                    std::span<const DevicePool> pools, int64_t micro_batches);

// The cost of a division by the same objective; infinite where a stage does not fit.
double division_s(std::span<const DivisionLayer> layers, const LayerDivision& division,
                  std::span<const DevicePool> pools, int64_t micro_batches);

}  // namespace esp::plan
