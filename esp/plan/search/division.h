// Layers over the stages of a pipeline, by dynamic programming: uneven layers (a stem, a head, experts in some),
// devices of several kinds, and what each of them can hold.
//
// A step of m micro-batches takes Σ t_k + (m − 1)·max t_k, t_k the time stage k needs for one: the first fills the
// pipeline, the rest pass at the pace of the slowest. For each pace that some run of layers has, a walk over (layers
// done, devices used of each kind) finds the least sum with no stage above the pace; the answer is exact for that
// objective.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace esp::plan {

struct LayerCost {
  double time_s = 0;        // forward and backward of one micro-batch
  double state_bytes = 0;   // held all the time
  double active_bytes = 0;  // held for every micro-batch alive
};

// Devices of one kind, by the stages they can hold.
struct Pool {
  int stages = 0;
  double slowness = 1;      // a layer takes so many times its time
  double memory_bytes = 0;  // 0: enough
};

struct Division {
  std::vector<int> layers;  // of each stage
  std::vector<int> pool;    // likewise, which it stands on
  double step_s = 0, dearest_s = 0;
};

// `stages` at most those the pools have; none: no division fits. Stage k of P keeps min(P − k, m) micro-batches alive
// (1F1B). UsageError: more stages than layers, or than the pools hold.
std::optional<Division> divide(std::span<const LayerCost> layers, int stages, std::span<const Pool> pools,
                               int64_t micro_batches);

// What a division costs by the same objective; infinite where a stage does not fit.
double division_s(std::span<const LayerCost> layers, const Division& division, std::span<const Pool> pools,
                  int64_t micro_batches);

}  // namespace esp::plan
