#include "esp/sync/prefetch_window/window_plan.h"

#include <algorithm>
#include <vector>

namespace esp::sync {
namespace {

constexpr double kNever = -1;  // a layer that is not on the device

// The layers on the device or in flight, and their arrival times.
struct Walk {
  Walk(std::span<const LayerTimes> all, int64_t m) : layers(all), ready(all.size(), kNever) {
    for (size_t i = 0; i < std::min(all.size(), static_cast<size_t>(m) + 1); ++i) place(i, 0);
  }
  void place(size_t i, double when) {
    ready[i] = when;
    bytes += layers[i].bytes;
    result.peak_bytes = std::max(result.peak_bytes, bytes);
  }
  void drop(size_t i) {
    ready[i] = kNever;
    bytes -= layers[i].bytes;
  }
  void fetch(size_t i, double room_from) {
    if (ready[i] != kNever) return;
    up_free = std::max({now, room_from, up_free}) + layers[i].fetch_ms;
    place(i, up_free);
  }
  // Waits for layer i; returns its start time.
  void begin(size_t i) {
    if (ready[i] == kNever) fetch(i, now);
    result.stall_ms += std::max(0.0, ready[i] - now);
    now = std::max(now, ready[i]);
  }
  void compute(double ms) {
    now += ms;
    result.computing_ms += ms;
  }

  std::span<const LayerTimes> layers;
  std::vector<double> ready;
  double now = 0, up_free = 0, down_free = 0;
  uint64_t bytes = 0;
  WindowWalk result;
};

}  // namespace

bool window_rule(std::span<const LayerTimes> layers, int64_t m) {
  const auto num = static_cast<int64_t>(layers.size());
  const auto at = [&](int64_t i) -> const LayerTimes& { return layers[static_cast<size_t>(i)]; };
  const auto forward = [&](int64_t i) {  // of m layers starting at i
    double sum = 0;
    for (int64_t j = i; j < i + m; ++j) sum += at(j).forward_ms;
    return sum;
  };
  const auto backward = [&](int64_t i) {  // of m layers starting at i, backward
    double sum = 0;
    for (int64_t j = i; j > i - m; --j) sum += at(j).backward_ms;
    return sum;
  };
  // The first m + 1 layers are present when forward begins, and the last m + 1 when backward begins.
  for (int64_t i = 1; i + m < num; ++i)
    if (at(i + m).fetch_ms > forward(i)) return false;
  for (int64_t i = num - 2; i - m >= 0; --i)
    if (at(i - m).fetch_ms > backward(i) || at(i + 1).offload_ms > backward(i)) return false;
  return true;
}

WindowWalk walk_window(std::span<const LayerTimes> layers, int64_t m) {
  const auto num = static_cast<int64_t>(layers.size());
  Walk walk(layers, m);
  for (int64_t i = 0; i < num; ++i) {
    // The layers at which backward begins stay.
    if (i >= 1 && i - 1 < num - 1 - m) walk.drop(static_cast<size_t>(i - 1));
    if (i + m < num && m > 0) walk.fetch(static_cast<size_t>(i + m), walk.now);
    walk.begin(static_cast<size_t>(i));
    walk.compute(layers[static_cast<size_t>(i)].forward_ms);
  }
  double room_from = 0;  // time at which the slot of the layer after the current one is free
  for (int64_t i = num - 1; i >= 0; --i) {
    const LayerTimes& layer = layers[static_cast<size_t>(i)];
    if (i + 1 < num && i + 1 > m) walk.drop(static_cast<size_t>(i + 1));  // the first layers stay for the next forward
    if (i - m >= 0 && m > 0) walk.fetch(static_cast<size_t>(i - m), room_from);
    walk.begin(static_cast<size_t>(i));
    walk.compute(layer.backward_ms);
    walk.down_free = std::max(walk.now, walk.down_free) + layer.offload_ms;
    room_from = walk.down_free;
  }
  return walk.result;
}

WindowPlan least_window(std::span<const LayerTimes> layers, uint64_t budget_bytes) {
  WindowPlan best;
  best.fits = false;
  const auto widest = std::max<int64_t>(1, static_cast<int64_t>(layers.size()) - 1);
  for (int64_t m = 1; m <= widest; ++m) {
    const WindowWalk walk = walk_window(layers, m);
    if (budget_bytes > 0 && walk.peak_bytes > budget_bytes) {
      best.short_of_memory = true;
      return best;
    }
    if (!best.fits || walk.stall_ms < best.stall_ms) best = {m, walk.stall_ms, true, false};
    if (walk.stall_ms == 0) return best;
  }
  return best;
}

}  // namespace esp::sync
