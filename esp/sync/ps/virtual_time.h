// Parameter servers in virtual time: what order of pushes, clocks and delays come to, without any rank.
//
// Pure functions. The push queue is the one that real workers use.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace esp::sync {

// One layer, in units of time; push and pull are of all its partitions together.
struct LayerCost {
  double forward = 0, backward = 0, push = 0, pull = 0;
};

struct PushPlan {
  bool by_priority = true;  // layer 1 first; else as backward yields them
  double partition = 1;     // most time that a partition takes on the link
  int credit = 1;           // partitions under way
  bool duplex = false;      // pulls have a direction of their own; else both share one link
};

struct Transfer {
  int layer = 0;
  bool pull = false;  // on one link a partition is pushed and pulled in one go
  double begin = 0, end = 0;
};

struct PushRun {
  double time = 0;  // from the first backward to the end of the last forward
  std::vector<double> forward_begins;
  std::vector<Transfer> transfers;  // as the links carried them
};
// Backward of the last layer to the first, then forward of the first to the last, each layer of it as soon as its own
// values and those before are in.
PushRun run_pushes(const std::vector<LayerCost>& layers, const PushPlan& plan);

enum class Pace : uint8_t { sync, async, ssp };
struct PaceRun {
  std::vector<int64_t> steps;            // by worker
  int64_t largest_gap = 0;               // between a worker that begins and the slowest
  std::map<int64_t, int64_t> staleness;  // of pushes
};
// Workers that take step_time[i] for a step, for so long; communication takes no time.
PaceRun run_paces(const std::vector<double>& step_time, double until, Pace pace, int64_t bound);

// |x| after so many steps of x ← x − c·x, with the x of `delay` steps before, from 1.
double delayed_descent(double c, int delay, int64_t steps);
// The largest c for which it does not grow: 2·sin(π/(2(2·delay + 1))).
double largest_stable(int delay);

// One step's transfers of W workers with S bytes each and K servers on equal links of so many bytes a second.
double push_pull_seconds(double bytes, int num_workers, int num_servers, double bytes_per_s, bool overlapped);

}  // namespace esp::sync
