// Parameter servers in virtual time: computes the results of push orders, clocks and delays without running ranks.
//
// Pure functions. They use the push queue of the real workers.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace esp::sync {

// Times of one layer. `push` and `pull` are the times to transfer all partitions of the layer.
struct PsLayerCost {
  double forward = 0, backward = 0, push = 0, pull = 0;
};

struct PushPlan {
  bool by_priority = true;  // true: layer 1 is sent first; false: the order in which backward completes the layers
  double partition = 1;     // maximum transfer time of one partition
  int credit = 1;           // maximum number of partitions in flight
  bool duplex = false;      // true: pulls use the other direction of the link; false: both share one direction
};

struct ScheduledTransfer {
  int layer = 0;
  bool pull = false;  // true: a pull; false: a push, which without duplex includes the pull
  double begin = 0, end = 0;
};

struct PushResult {
  double time = 0;  // time from the start of backward to the end of forward
  std::vector<double> forward_begins;
  std::vector<ScheduledTransfer> transfers;  // the transfers, in the order in which they ended
};
// Simulates backward from the last layer to the first, then forward from the first to the last. Forward of a layer
// starts once its weights have arrived and the previous layer is done.
PushResult simulate_pushes(const std::vector<PsLayerCost>& layers, const PushPlan& plan);

enum class ClockMode : uint8_t { sync, async, ssp };
struct ClockResult {
  std::vector<int64_t> steps;  // [worker]: number of steps it has finished
  int64_t largest_gap = 0;     // maximum number of steps by which a worker that begins a step is ahead of the slowest
  std::map<int64_t, int64_t> staleness;  // number of pushes by staleness
};
// Simulates workers up to time `until`. A step of worker i takes step_time[i]; communication takes no time.
ClockResult simulate_clocks(const std::vector<double>& step_time, double until, ClockMode pace, int64_t bound);

// Iterates x ← x − c·x' from x = 1, where x' is the value of x `delay` steps earlier. Returns |x| after `steps` steps.
double delayed_descent(double c, int delay, int64_t steps);
// The largest c for which |x| of delayed_descent does not grow: 2·sin(π/(2(2·delay + 1))).
double largest_stable(int delay);

// Seconds that the transfers of one step take, with num_workers workers of `bytes` bytes each and num_servers servers,
// on equal links. `overlapped`: pushes and pulls overlap.
double push_pull_seconds(double bytes, int num_workers, int num_servers, double bytes_per_s, bool overlapped);

}  // namespace esp::sync
