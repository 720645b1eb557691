// Estimate of a training step in closed form: memory of the worst stage by category, arithmetic, traffic by group,
// time, and overlap. Pure; a few microseconds per call, so a search can evaluate a million policies.
//
// memory_of computes the memory alone (cheapest, evaluated first by a search), estimate everything.
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
  double slack = 0;           // fragments that the allocator cannot return
  double cached = 0;          // reserved beyond that; returned before an allocation fails, so not in the total
  int stage = 0;              // the worst stage
  double host = 0, file = 0;  // bytes offloaded to the tiers below
  double states() const { return parameter + gradient + optimizer; }
  double allocated() const { return states() + activation + buffer; }
  double total() const { return allocated() + slack + other; }      // must be within the capacity
  double reserved() const { return allocated() + slack + cached; }  // as the framework's allocator reports
};

// The fit test that every verdict uses.
struct MemoryFit {
  double needed = 0, capacity = 0;  // bytes; capacity 0: unknown
  bool whole_machine = false;       // sum over all ranks, on a calibrated CPU machine; otherwise per processor
  bool fits() const { return capacity == 0 || needed <= capacity; }
};
MemoryFit memory_fit(const Memory& worst_stage, const Cluster& cluster, const Policy& policy);

// The planner's prediction error: 80 % of predicted step times of this kind are within this fraction, measured against
// published runs and runs of this program (docs/planner.md). Basis of intervals and of ties in a search.
double step_error(const ModelShape& shape, const Cluster& cluster, const Policy& policy);
inline constexpr double kMemoryError = 0.085;  // the same for memory

struct GroupTraffic {
  std::string group, op, tier;  // "tp" "all_reduce" "inside"
  double bytes = 0;             // sent by one processor per step
  double time_s = 0, exposed_s = 0;
};

struct Estimate {
  double parameters = 0, active_parameters = 0;
  Memory memory;                         // of the worst stage
  std::vector<Memory> stages;            // of every stage, on request
  double flops = 0, hardware_flops = 0;  // per step, all processors; hardware_flops includes recomputation
  // Seconds of a step on the slowest stage.
  double step_s = 0, compute_s = 0, bubble_s = 0, exposed_s = 0, optimizer_s = 0, offload_s = 0;
  double bubble = 0;             // of the ideal time
  double low_s = 0, high_s = 0;  // 80 % prediction interval
  std::vector<GroupTraffic> traffic;
  bool fits = true;
  // why it is not feasible, and warnings with their cost (tensor groups across nodes …)
  std::vector<std::string> reasons;
  std::vector<std::string> assumed;  // assumptions for missing inputs

  double tokens_per_s = 0, tflops_per_gpu = 0, mfu = 0, hfu = 0;
};

// Seconds of one piece's forward, input-gradient and weight-gradient per micro-batch: input of the closed form and of
// the event simulation.
struct StageTime {
  double forward = 0, backward = 0, weights = 0;
  double send_s = 0;  // to the next stage
};

// UsageError for an impossible policy (a layout's rule with the nearest valid value, an unsupported precision, invalid
// sizes).
void check(const ModelShape& shape, const Cluster& cluster, const Policy& policy);
std::optional<std::string> broken(const ModelShape& shape, const Cluster& cluster,
                                  const Policy& policy);  // the same without throwing

Memory memory_of(const ModelShape& shape, const Cluster& cluster, const Policy& policy);  // worst stage
std::vector<Memory> stage_memories(const ModelShape& shape, const Cluster& cluster, const Policy& policy);
std::vector<StageTime> stage_times(const ModelShape& shape, const Cluster& cluster, const Policy& policy);  // by piece
Estimate estimate(const ModelShape& shape, const Cluster& cluster, const Policy& policy);
// A lower bound of the step time of this layout: compute at its best rate and nothing else. For pruning.
double lower_bound_s(const ModelShape& shape, const Cluster& cluster, const Policy& policy);

// Cost of a whole training at that speed.
struct TrainingCost {
  double steps = 0, hours = 0, gpu_hours = 0, price = 0, energy_kwh = 0, goodput = 1;
};
TrainingCost cost_of(const Estimate& estimate, const Cluster& cluster, const Policy& policy, const ModelShape& shape,
                     double tokens);

}  // namespace esp::plan
