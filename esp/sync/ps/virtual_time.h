// Parameter servers in virtual time: results of push orders, clocks and delays, computed without ranks.
//
// Pure functions. Uses the push queue of real workers.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace esp::sync {

// One layer, in units of time; push and pull are of all its partitions together.
struct PsLayerCost {
  double forward = 0, backward = 0, push = 0, pull = 0;
};

struct PushPlan {
  bool by_priority = true;  // layer 1 first; otherwise in the order of backward
  double partition = 1;     // longest transfer time of a partition
  int credit = 1;           // partitions in flight
  bool duplex = false;      // pulls have a separate direction; otherwise both share one link
};

struct ScheduledTransfer {
  int layer = 0;
  bool pull = false;  // on one link a partition is pushed and pulled in one transfer
  double begin = 0, end = 0;
};

struct PushResult {
  double time = 0;  // from the first backward to the end of the last forward
  std::vector<double> forward_begins;
  std::vector<ScheduledTransfer> transfers;  // in the order of the links
};
// Backward of the last layer to the first, then forward of the first to the last, each layer as soon as its weights and
// the layer before it are ready.
PushResult run_pushes(const std::vector<PsLayerCost>& layers, const PushPlan& plan);

enum class Pace : uint8_t { sync, async, ssp };
struct PaceResult {
  std::vector<int64_t> steps;            // by worker
  int64_t largest_gap = 0;               // between the worker that begins and the slowest
  std::map<int64_t, int64_t> staleness;  // of pushes: count by staleness
};
// Workers that take step_time[i] per step, for `duration`; communication takes no time.
PaceResult run_paces(const std::vector<double>& step_time, double until, Pace pace, int64_t bound);

// |x| after `steps` of x ← x − c·x with the x of `delay` steps before, starting at 1.
double delayed_descent(double c, int delay, int64_t steps);
// The largest c for which |x| does not grow: 2·sin(π/(2(2·delay + 1))).
double largest_stable(int delay);

// Seconds of one step's transfers for W workers with S bytes each and K servers on equal links.
double push_pull_seconds(double bytes, int num_workers, int num_servers, double bytes_per_s, bool overlapped);

}  // namespace esp::sync
