// How many layers to fetch ahead when the host holds them all and the device a window of them (STRONGHOLD, Sun 2022):
// the least m for which no layer is waited for. A pure function of times and sizes, and the walk in virtual time that
// shows what a window costs.
//
// The window: when layer i begins in forward, layer i + m is asked for, into the room of layer i − 1; the last m stay
// at the turn; when layer i begins in backward, layer i − m is asked for, into the room of layer i + 1 once its
// gradients have gone down. m + 1 layers are on the device at most. One copy goes up at a time, and one down.
#pragma once

#include <cstdint>
#include <span>

namespace esp::sync {

struct LayerTimes {
  double fetch_ms = 0;                     // up
  double forward_ms = 0, backward_ms = 0;  // computing
  double offload_ms = 0;                   // its gradients, down
  uint64_t bytes = 0;                      // on the device
};

// Whether every fetch is covered by the computing of the m layers before it, and every layer's gradients leave while
// the m layers after it compute, each looked at by itself: fetch(i + m) ≤ Σ forward(i … i + m − 1) in forward,
// fetch(i − m) ≤ Σ backward(i … i − m + 1) and offload(i) ≤ Σ backward(i − 1 … i − m) in backward, of layers that are
// fetched and rooms that are used again. Necessary for no stall; where fetches queue on one link, not enough.
bool window_rule(std::span<const LayerTimes> layers, int64_t m);

struct WindowWalk {
  double stall_ms = 0;  // computing waited for a layer
  double computing_ms = 0;
  uint64_t peak_bytes = 0;  // of layers on the device or on their way
};
// One step; the first m + 1 layers are there when it begins.
WindowWalk walk_window(std::span<const LayerTimes> layers, int64_t m);

struct WindowPlan {
  int64_t window = 1;  // m
  double stall_ms = 0;
  bool fits = true;              // false: not even two layers do; window is 1
  bool short_of_memory = false;  // a wider window would stall less, and does not fit
};
// budget_bytes: for the m + 1 layers; 0: no limit.
WindowPlan least_window(std::span<const LayerTimes> layers, uint64_t budget_bytes);

}  // namespace esp::sync
