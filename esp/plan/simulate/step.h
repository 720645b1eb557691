// One training step in the event simulation: the pipeline's action lists (esp/parallel), gradient buckets sent during
// backward, gathers during forward, the update; with slow processors and shared links.
//
// A stage of one replica is simulated as one device: the ranks of its tensor and context groups run in lockstep, at the
// pace of the slowest, and their traffic is part of the pieces' times. Equal replicas are folded into one; their sums
// over all replicas begin when the last is ready.
#pragma once

#include <string>
#include <vector>

#include "esp/base/json.h"
#include "esp/parallel/pp/schedule.h"
#include "esp/plan/estimate.h"
#include "esp/plan/simulate/schedules.h"

namespace esp::plan {

// A collective or a message of one rank: seconds before the first byte, and bytes over its port.
struct PortCall {
  double alpha_s = 0, bytes = 0;
  bool across = false;  // on the network between nodes
};

struct StageInput {
  std::vector<PortCall> sums;     // of a chunk's gradients, bucket by bucket, in the order of backward
  std::vector<PortCall> gathers;  // of a chunk's weights before the first forward, in the order of forward
  double update_s = 0;
  double offload_s = 0;         // over the links to the host and its files, before the update
  double held_bytes = 0;        // during the whole step
  double activation_bytes = 0;  // per chunk and micro-batch
};

// Input of the step simulation, independent of the cost model.
struct StepInput {
  parallel::PipelineSchedule schedule;
  PiecePlacement placement = PiecePlacement::round;
  bool together = true;           // schedules.h
  std::vector<StageTime> pieces;  // by piece, in model order
  PortCall boundary;              // between stages, either direction
  std::vector<StageInput> stages;
  bool overlap_sums = true, overlap_sends = true;
  double beside = 0;  // slowdown of concurrent kernels, as a fraction of a collective's time
  double inside_bandwidth = 0, across_bandwidth = 0;  // of one device's port, bytes/s; 0: infinite
  double step_s = 0;                                  // of the host, at the end
  int copies = 1;                                     // of the model
  // Where devices are threads of one machine: its cores, the number of ranks per device, and the threads of each. 0:
  // every device has a separate processor.
  double cores = 0, ranks_of_device = 1, threads_of_rank = 1;
  std::vector<std::vector<double>> slowdown;  // by replica and stage; empty: 1 everywhere
};

struct DeviceUse {
  int copy = 0, stage = 0;  // the first of the folded replicas
  int folded = 1;           // replicas
  double compute_s = 0;     // busy
  double waiting_s = 0;     // idle until its replica has finished computing: the bubble, and exposed messages
  double after_s = 0;       // from then to the update: exposed sums
  double sending_s = 0;     // messages to other stages, both directions
  double offload_s = 0;     // its link to the host
  double summing_s = 0;     // its sums and gathers
  double peak_bytes = 0;
};

struct StepSimulation {
  double step_s = 0;
  double compute_s = 0, bubble_s = 0, exposed_s = 0, update_s = 0;  // of the device that computes longest
  double bubble = 0;                                                // idle over busy, all devices
  std::vector<DeviceUse> devices;
  uint64_t events = 0, tasks = 0;
};

// `trace`, if given, receives a Perfetto trace.
StepSimulation simulate_step(const StepInput& input, Json* trace = nullptr);

// A straggler: its compute takes `factor` times as long.
struct SlowRank {
  int rank = 0;
  double factor = 1;
};
// Converts a policy and its cost model to a simulation input. UsageError: a schedule without action lists, a rank out
// of range.
StepInput step_input(const ModelShape& shape, const Cluster& cluster, const Policy& policy,
                     const std::vector<SlowRank>& stragglers = {});

}  // namespace esp::plan
