// What a step costs, in closed form: memory of the worst stage by category, arithmetic, traffic by group, time, and
// what hides behind what. Pure; a few microseconds a call, so that a search may ask a million times.
//
// Three parts answer apart and together: memory_of (cheapest, asked first by a search), and estimate (everything).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "esp/plan/cluster.h"
#include "esp/plan/policy.h"
#include "esp/plan/shape.h"

namespace esp::plan {

struct Memory {  // bytes of one processor
  double parameter = 0, gradient = 0, optimizer = 0, activation = 0, buffer = 0;
  double other = 0;           // outside the allocator: context, communication library
  double slack = 0;           // fragmentation: reserved beyond allocated
  int stage = 0;              // the worst
  double host = 0, file = 0;  // bytes moved out to the tiers below
  double states() const { return parameter + gradient + optimizer; }
  double allocated() const { return states() + activation + buffer; }
  double total() const { return allocated() + slack + other; }
};

struct Traffic {
  std::string group, op, tier;  // "tp" "all_reduce" "inside"
  double bytes = 0;             // sent by one processor in a step
  double time_s = 0, exposed_s = 0;
};

struct Estimate {
  double parameters = 0, active_parameters = 0;
  Memory memory;                         // of the worst stage
  std::vector<Memory> stages;            // of every one, filled when asked
  double flops = 0, hardware_flops = 0;  // of a step, all processors; the second with recomputation
  // Seconds of a step on the slowest stage.
  double step_s = 0, compute_s = 0, bubble_s = 0, exposed_s = 0, optimizer_s = 0, offload_s = 0;
  double bubble = 0;             // of the ideal time
  double low_s = 0, high_s = 0;  // 80 % of such predictions fall between
  std::vector<Traffic> traffic;
  bool fits = true;
  std::vector<std::string> reasons;  // why not, and warnings with their cost (tensor groups across nodes …)
  std::vector<std::string> assumed;  // what was not given and what was taken

  double tokens_per_s = 0, tflops_per_gpu = 0, mfu = 0, hfu = 0;
};

// Seconds of one piece's forward, input-gradient and weight-gradient for one micro-batch: what the closed form and the
// event simulation both stand on.
struct StageTime {
  double forward = 0, backward = 0, weights = 0;
  double send_s = 0;  // to the next stage
};

// UsageError: what cannot be (a layout's rule with the nearest that works, a precision the chip lacks, sizes absurd).
void check(const Shape& shape, const Cluster& cluster, const Policy& policy);
std::optional<std::string> broken(const Shape& shape, const Cluster& cluster,
                                  const Policy& policy);  // the same, no throw

Memory memory_of(const Shape& shape, const Cluster& cluster, const Policy& policy);  // worst stage
std::vector<Memory> stage_memories(const Shape& shape, const Cluster& cluster, const Policy& policy);
std::vector<StageTime> stage_times(const Shape& shape, const Cluster& cluster, const Policy& policy);  // by piece
Estimate estimate(const Shape& shape, const Cluster& cluster, const Policy& policy);
// A time no policy of this layout can beat: compute at its best and nothing else. For pruning.
double lower_bound_s(const Shape& shape, const Cluster& cluster, const Policy& policy);

// What a whole training costs at that speed.
struct Cost {
  double steps = 0, hours = 0, gpu_hours = 0, price = 0, energy_kwh = 0, goodput = 1;
};
Cost cost_of(const Estimate& estimate, const Cluster& cluster, const Policy& policy, const Shape& shape, double tokens);

}  // namespace esp::plan
