// One training step in the event simulation: the pipeline's lists of actions (esp/parallel), gradient buckets that are
// sent during backward, weight gathers during forward, and the update. Processors may be slow and links may be shared.
//
// Each stage of a replica is one device. The ranks of its tensor and context groups run in lockstep at the rate of the
// slowest; their traffic is part of the piece times. Equal replicas are simulated once. A collective over all replicas
// begins when the last of them is ready.
#pragma once

#include <string>
#include <vector>

#include "esp/base/json.h"
#include "esp/parallel/pp/schedule.h"
#include "esp/plan/estimate.h"
#include "esp/plan/simulate/schedules.h"

namespace esp::plan {

// The part of a collective or message that one rank's port carries: `alpha_s` seconds before the first byte, then
// `bytes`.
struct PortCall {
  double alpha_s = 0, bytes = 0;
  bool across = false;  // true: uses the network between nodes
};

struct StageInput {
  std::vector<PortCall> sums;     // gradient reductions of one chunk, one per bucket, in the order of backward
  std::vector<PortCall> gathers;  // weight all-gathers before the first forward of one chunk, in the order of forward
  double update_s = 0;
  double offload_s = 0;         // seconds of transfers to host memory and disk before the update
  double held_bytes = 0;        // bytes that stay allocated during the whole step
  double activation_bytes = 0;  // activation bytes per chunk and micro-batch
};

// Input of the step simulation. It does not depend on the cost model.
struct StepInput {
  parallel::PipelineSchedule schedule;
  PiecePlacement placement = PiecePlacement::cyclic;
  bool synchronised = true;       // see StepSchedule
  std::vector<StageTime> pieces;  // times of each piece, in the order of the model
  PortCall boundary;              // one message between stages, in either direction
  std::vector<StageInput> stages;
  bool overlap_sums = true, overlap_sends = true;
  double overlap_slowdown = 0;  // extra kernel seconds per second of a concurrent collective
  // bandwidth of one device's port on each tier, bytes/s; 0: infinite
  double inside_bandwidth = 0, across_bandwidth = 0;
  double step_s = 0;     // host seconds at the end of the step
  int num_replicas = 1;  // number of data-parallel replicas
  // If all devices are threads of one machine: number of its cores, ranks per device, and threads per rank. cores = 0:
  // every device has its own processor.
  double cores = 0, ranks_of_device = 1, threads_of_rank = 1;
  std::vector<std::vector<double>> slowdown;  // [replica][stage]: factor on compute times; empty: no slowdown
};

struct DeviceUse {
  int replica = 0, stage = 0;  // `replica`: the first replica of the class
  int num_folded = 1;          // number of equal replicas in the class
  double compute_s = 0;        // seconds of compute
  // Idle seconds until the last stage of the replica has finished computing: the bubble and exposed messages.
  double waiting_s = 0;
  double after_s = 0;    // idle seconds between that time and the update: exposed gradient reduction
  double sending_s = 0;  // seconds of messages to other stages, in both directions
  double offload_s = 0;  // seconds of transfers to the host
  double summing_s = 0;  // seconds of gradient reduction and weight all-gathers
  double peak_bytes = 0;
};

struct StepSimulation {
  double step_s = 0;
  double compute_s = 0, bubble_s = 0, exposed_s = 0, update_s = 0;  // seconds on the device with the most compute
  double bubble = 0;                                                // waiting_s / compute_s, summed over all devices
  std::vector<DeviceUse> devices;
  uint64_t events = 0, tasks = 0;
};

// Simulates one step. `trace`: null, or receives a Perfetto trace.
StepSimulation simulate_step(const StepInput& input, Json* trace = nullptr);

// A straggler: compute on this rank takes `factor` times as long.
struct SlowRank {
  int rank = 0;
  double factor = 1;
};
// Builds the simulation input of a policy from the cost model. UsageError if the schedule has no list of actions or a
// rank is out of range.
StepInput step_input(const ModelShape& shape, const Cluster& cluster, const Policy& policy,
                     const std::vector<SlowRank>& stragglers = {});

}  // namespace esp::plan
