#include "esp/sync/prefetch_window/window_plan.h"

#include <algorithm>
#include <vector>

namespace esp::sync {
namespace {

constexpr double kNever = -1;  // arrival time of a layer that is neither on the device nor in flight

// Simulation state: the layers on the device or in flight, with their arrival times.
struct LayerTimeline {
  LayerTimeline(std::span<const LayerTimes> all, int64_t m) : layers(all), ready(all.size(), kNever) {
    for (size_t i = 0; i < std::min(all.size(), static_cast<size_t>(m) + 1); ++i) add_layer(i, 0);
  }
  void add_layer(size_t i, double when) {
    ready[i] = when;
    bytes += layers[i].bytes;
    result.peak_bytes = std::max(result.peak_bytes, bytes);
  }
  void drop(size_t i) {
    ready[i] = kNever;
    bytes -= layers[i].bytes;
  }
  void fetch(size_t i, double slot_free_ms) {
    if (ready[i] != kNever) return;
    up_free = std::max({now, slot_free_ms, up_free}) + layers[i].fetch_ms;
    add_layer(i, up_free);
  }
  // Waits until layer i is on the device (fetches it if it is not in flight); adds the wait to the stall time.
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
  WindowSimulation result;
};

}  // namespace

bool window_rule(std::span<const LayerTimes> layers, int64_t m) {
  const auto num = static_cast<int64_t>(layers.size());
  const auto at = [&](int64_t i) -> const LayerTimes& { return layers[static_cast<size_t>(i)]; };
  const auto forward = [&](int64_t i) {  // sum of the forward times of layers i … i + m − 1
    double sum = 0;
    for (int64_t j = i; j < i + m; ++j) sum += at(j).forward_ms;
    return sum;
  };
  const auto backward = [&](int64_t i) {  // sum of the backward times of layers i … i − m + 1
    double sum = 0;
    for (int64_t j = i; j > i - m; --j) sum += at(j).backward_ms;
    return sum;
  };
  // The checks skip layers that are never fetched: forward begins with the first m + 1 layers on the device, and
  // backward with the last m + 1.
  for (int64_t i = 1; i + m < num; ++i)
    if (at(i + m).fetch_ms > forward(i)) return false;
  for (int64_t i = num - 2; i - m >= 0; --i)
    if (at(i - m).fetch_ms > backward(i) || at(i + 1).offload_ms > backward(i)) return false;
  return true;
}

WindowSimulation simulate_window(std::span<const LayerTimes> layers, int64_t m) {
  const auto num = static_cast<int64_t>(layers.size());
  LayerTimeline timeline(layers, m);
  for (int64_t i = 0; i < num; ++i) {
    // Drops the layer that just ran, except the last m + 1: backward begins with those.
    if (i >= 1 && i - 1 < num - 1 - m) timeline.drop(static_cast<size_t>(i - 1));
    if (i + m < num && m > 0) timeline.fetch(static_cast<size_t>(i + m), timeline.now);
    timeline.begin(static_cast<size_t>(i));
    timeline.compute(layers[static_cast<size_t>(i)].forward_ms);
  }
  double slot_free_ms = 0;  // time at which the slot of the layer that just ran becomes free
  for (int64_t i = num - 1; i >= 0; --i) {
    const LayerTimes& layer = layers[static_cast<size_t>(i)];
    // Drops the layer that just ran, except the first m + 1: the next forward begins with those.
    if (i + 1 < num && i + 1 > m) timeline.drop(static_cast<size_t>(i + 1));
    if (i - m >= 0 && m > 0) timeline.fetch(static_cast<size_t>(i - m), slot_free_ms);
    timeline.begin(static_cast<size_t>(i));
    timeline.compute(layer.backward_ms);
    timeline.down_free = std::max(timeline.now, timeline.down_free) + layer.offload_ms;
    slot_free_ms = timeline.down_free;
  }
  return timeline.result;
}

WindowPlan least_window(std::span<const LayerTimes> layers, uint64_t budget_bytes) {
  WindowPlan best;
  best.fits = false;
  const auto widest = std::max<int64_t>(1, static_cast<int64_t>(layers.size()) - 1);
  for (int64_t m = 1; m <= widest; ++m) {
    const WindowSimulation timeline = simulate_window(layers, m);
    if (budget_bytes > 0 && timeline.peak_bytes > budget_bytes) {
      best.short_of_memory = true;
      return best;
    }
    if (!best.fits || timeline.stall_ms < best.stall_ms) best = {m, timeline.stall_ms, true, false};
    if (timeline.stall_ms == 0) return best;
  }
  return best;
}

}  // namespace esp::sync
