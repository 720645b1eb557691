// Prefetch window for layers in host memory (STRONGHOLD, Sun 2022): the least number m of layers to fetch ahead for
// which no layer is waited for. A pure function of times and sizes, and a simulation that computes the stalls of a
// window.
//
// When layer i begins in forward, layer i + m is fetched into the slot of layer i − 1; the last m layers stay between
// forward and backward; when layer i begins in backward, layer i − m is fetched into the slot of layer i + 1 once its
// gradients are offloaded. At most m + 1 layers are on the device. One copy at a time in each direction.
#pragma once

#include <cstdint>
#include <span>

namespace esp::sync {

struct LayerTimes {
  double fetch_ms = 0;                     // host to device
  double forward_ms = 0, backward_ms = 0;  // compute
  double offload_ms = 0;                   // gradients, device to host
  uint64_t bytes = 0;                      // on the device
};

// Whether every fetch is covered by the compute of the m layers before it, and every gradient offload by the compute of
// the m layers after it, each checked separately: fetch(i + m) ≤ Σ forward(i … i + m − 1) in forward, fetch(i − m) ≤ Σ
// backward(i … i − m + 1) and offload(i) ≤ Σ backward(i − 1 … i − m) in backward, for fetched layers and reused slots.
// Necessary for zero stall; not sufficient where fetches queue on one link.
bool window_rule(std::span<const LayerTimes> layers, int64_t m);

struct WindowWalk {
  double stall_ms = 0;  // compute waited for a layer
  double computing_ms = 0;
  uint64_t peak_bytes = 0;  // of layers on the device or in flight
};
// One step; the first m + 1 layers are present when it begins.
WindowWalk walk_window(std::span<const LayerTimes> layers, int64_t m);

struct WindowPlan {
  int64_t window = 1;  // m
  double stall_ms = 0;
  bool fits = true;              // false: two layers do not fit; window is 1
  bool short_of_memory = false;  // a wider window would stall less but does not fit
};
// budget_bytes: for the m + 1 layers; 0: no limit.
WindowPlan least_window(std::span<const LayerTimes> layers, uint64_t budget_bytes);

}  // namespace esp::sync
