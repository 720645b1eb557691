// Divides layers over pipeline stages by dynamic programming. Supports layers of different cost (embedding, head, some
// with experts), devices of several kinds, and memory limits.
//
// A step of m micro-batches takes Σ t_k + (m − 1)·max t_k, where t_k is the time of stage k per micro-batch: the first
// micro-batch fills the pipeline, the others follow at the pace of the slowest stage. For each candidate pace, a search
// over (layers assigned, devices used of each kind) finds the smallest sum with no stage slower than the pace. The
// result is exact for this objective.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace esp::plan {

struct DivisionLayer {
  double time_s = 0;        // seconds of forward and backward per micro-batch
  double state_bytes = 0;   // bytes allocated during the whole step
  double active_bytes = 0;  // activation bytes per micro-batch in flight
};

// Devices of one kind. `stages`: the number of pipeline stages that they can hold.
struct DevicePool {
  int stages = 0;
  double slowness = 1;      // layer time on these devices / DivisionLayer::time_s
  double memory_bytes = 0;  // memory of one stage; 0: unlimited
};

struct LayerDivision {
  std::vector<int> layers;  // number of layers of each stage
  std::vector<int> pool;    // index of the pool of each stage
  double step_s = 0, slowest_stage_s = 0;
};

// Divides the layers over `stages` stages. Stage k of P stages holds min(P − k, m) micro-batches (1F1B). nullopt: no
// division fits. UsageError if there are more stages than layers, or more than the pools can hold.
std::optional<LayerDivision> divide(std::span<const DivisionLayer> layers, int stages,
                                    std::span<const DevicePool> pools, int64_t micro_batches);

// Step time of a given division, by the same objective. Infinite if a stage exceeds the memory of its device.
double division_s(std::span<const DivisionLayer> layers, const LayerDivision& division,
                  std::span<const DevicePool> pools, int64_t micro_batches);

}  // namespace esp::plan
