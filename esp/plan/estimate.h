// Estimate of a training step in closed form: memory of the stage that needs most, FLOPs, traffic by group, time, and
// overlap. Pure functions; a call takes a few microseconds, so that a search can evaluate a million policies.
//
// memory_of() computes only the memory (cheap; a search calls it first); estimate() computes everything.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "esp/plan/cluster.h"
#include "esp/plan/policy.h"
#include "esp/plan/shape.h"

namespace esp::plan {

struct Memory {  // Bytes on one device by category.
  double parameter = 0, gradient = 0, optimizer = 0, activation = 0, buffer = 0;
  double other = 0;  // memory outside the allocator: CUDA context, communication library
  double slack = 0;  // fragmentation: reserved memory that the allocator cannot release
  // reserved but unused memory; the allocator releases it before an allocation fails, so total() excludes it
  double cached = 0;
  int stage = 0;              // stage to which these bytes belong
  double host = 0, file = 0;  // bytes offloaded: host memory, files
  double states() const { return parameter + gradient + optimizer; }
  double allocated() const { return states() + activation + buffer; }
  double total() const { return allocated() + slack + other; }      // the number to compare with the capacity
  double reserved() const { return allocated() + slack + cached; }  // the number that the framework's allocator reports
};

// Whether a policy fits in memory. All commands use this result, so they give the same answer.
struct MemoryFit {
  double needed = 0, capacity = 0;  // bytes; capacity = 0: the capacity is unknown
  // true (calibrated CPU machine): bytes of all ranks together; false: bytes of one device
  bool whole_machine = false;
  bool fits() const { return capacity == 0 || needed <= capacity; }
};
MemoryFit memory_fit(const Memory& worst_stage, const Cluster& cluster, const Policy& policy);

// Relative prediction error of the step time: 80 % of the predictions for this kind of run are within it. Derived from
// published runs and Espalier's own runs (docs/planner.md). Used for prediction intervals and for ties in a search.
double step_error(const ModelShape& shape, const Cluster& cluster, const Policy& policy);
inline constexpr double kMemoryError = 0.085;  // relative prediction error of the memory

struct GroupTraffic {
  std::string group, op, tier;  // group "tp", operation "all_reduce", tier "inside"
  double bytes = 0;             // bytes that one device sends per step
  double time_s = 0, exposed_s = 0;
};

struct Estimate {
  double parameters = 0, active_parameters = 0;
  Memory memory;                         // memory of the stage that needs most
  std::vector<Memory> stages;            // memory of every stage, if requested
  double flops = 0, hardware_flops = 0;  // FLOPs per step of all devices; hardware_flops includes recomputation
  // Seconds of a step, and their parts on the slowest stage.
  double step_s = 0, compute_s = 0, bubble_s = 0, exposed_s = 0, optimizer_s = 0, offload_s = 0;
  double bubble = 0;             // bubble time / time without a bubble
  double low_s = 0, high_s = 0;  // 80 % prediction interval of step_s
  std::vector<GroupTraffic> traffic;
  bool fits = true;
  // why the policy does not fit, and warnings with their cost (for example tensor groups across nodes)
  std::vector<std::string> reasons;
  std::vector<std::string> assumed;  // the values that were assumed for missing inputs

  double tokens_per_s = 0, tflops_per_gpu = 0, mfu = 0, hfu = 0;
};

// Seconds per micro-batch of one pipeline piece: forward, input gradients, weight gradients. Input of both the closed
// form and the event simulation.
struct StageTime {
  double forward = 0, backward = 0, weights = 0;
  double send_s = 0;  // seconds of the message to the next stage
};

// UsageError for a policy that cannot run: a broken layout rule (the message has the nearest valid value), a precision
// that the processor does not support, or invalid sizes.
void check(const ModelShape& shape, const Cluster& cluster, const Policy& policy);
std::optional<std::string> policy_error(const ModelShape& shape, const Cluster& cluster,
                                        // the message of check() without throwing; nullopt if the policy can run
                                        const Policy& policy);

// Memory of the stage that needs most.
Memory memory_of(const ModelShape& shape, const Cluster& cluster, const Policy& policy);
std::vector<Memory> stage_memories(const ModelShape& shape, const Cluster& cluster, const Policy& policy);
// One entry per pipeline piece.
std::vector<StageTime> stage_times(const ModelShape& shape, const Cluster& cluster, const Policy& policy);
Estimate estimate(const ModelShape& shape, const Cluster& cluster, const Policy& policy);
// A lower bound of the step time for pruning: all compute at the best rate, no communication, no bubble.
double lower_bound_s(const ModelShape& shape, const Cluster& cluster, const Policy& policy);

// Cost of a complete training on `tokens` tokens at the estimated step time.
struct TrainingCost {
  double steps = 0, hours = 0, gpu_hours = 0, price = 0, energy_kwh = 0, goodput = 1;
};
TrainingCost cost_of(const Estimate& estimate, const Cluster& cluster, const Policy& policy, const ModelShape& shape,
                     double tokens);

}  // namespace esp::plan
