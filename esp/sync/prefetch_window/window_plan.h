// Prefetch window for layers in host memory (STRONGHOLD, Sun 2022): the smallest number m of layers to fetch ahead so
// that compute never waits for a layer. A pure function of times and sizes, and a simulation that computes the stalls
// of a window.
//
// When forward starts layer i, layer i + m is fetched into the slot of layer i − 1. The last m layers stay between
// forward and backward. When backward starts layer i, layer i − m is fetched into the slot of layer i + 1 once the
// gradients of layer i + 1 are offloaded. At most m + 1 layers are on the device. One copy at a time in each direction.
#pragma once

#include <cstdint>
#include <span>

namespace esp::sync {

struct LayerTimes {
  double fetch_ms = 0;                     // time of a copy from host to device
  double forward_ms = 0, backward_ms = 0;  // compute times
  double offload_ms = 0;                   // time of copying the gradients from device to host
  uint64_t bytes = 0;                      // bytes of the layer on the device
};

// Whether the compute of m layers covers every fetch and every gradient offload, each checked separately:
//
//   forward   fetch(i + m) ≤ Σ forward(i … i + m − 1)
//   backward  fetch(i − m) ≤ Σ backward(i … i − m + 1), and offload(i + 1) ≤ the same sum
//
// Only layers that are fetched and slots that are reused count. The rule is necessary for zero stall. It is not
// sufficient, because fetches may queue on one link.
bool window_rule(std::span<const LayerTimes> layers, int64_t m);

struct WindowSimulation {
  double stall_ms = 0;  // time that compute waits for layers
  double computing_ms = 0;
  uint64_t peak_bytes = 0;  // peak bytes of layers on the device or in flight
};
// Simulates one step; the first m + 1 layers are on the device when it begins.
WindowSimulation simulate_window(std::span<const LayerTimes> layers, int64_t m);

struct WindowPlan {
  int64_t window = 1;  // the smallest m without stalls that fits; if there is none, the m with the least stall
  double stall_ms = 0;
  bool fits = true;              // false: two layers do not fit into the budget; `window` is then 1
  bool short_of_memory = false;  // a wider window would stall less but does not fit
};
// Finds the smallest window. budget_bytes limits the bytes of the m + 1 layers; 0: no limit.
WindowPlan least_window(std::span<const LayerTimes> layers, uint64_t budget_bytes);

}  // namespace esp::sync
