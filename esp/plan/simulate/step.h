// One training step as events: the pipeline's action lists (esp/parallel), gradient buckets that leave while backward
// runs, gathers that come while forward runs, the update; on processors that may be slow, over links that messages
// share.
//
// A stage of one copy of the model is simulated as one device: the ranks of its tensor and context groups work in
// lockstep, at the pace of the slowest, and their own traffic is in the times of the pieces. Copies that nothing
// distinguishes are folded into one; their sums over all copies begin when the last is ready.
#pragma once

#include <string>
#include <vector>

#include "esp/base/json.h"
#include "esp/parallel/pp/schedule.h"
#include "esp/plan/estimate.h"
#include "esp/plan/simulate/schedules.h"

namespace esp::plan {

// A collective or a message as a rank sees it: so long before any byte moves, and so many bytes over its port.
struct Wire {
  double alpha_s = 0, bytes = 0;
  bool across = false;  // by the network between nodes
};

struct StageInput {
  std::vector<Wire> sums;     // of a chunk's gradients, bucket by bucket, in the order backward fills them
  std::vector<Wire> gathers;  // of a chunk's values before the first forward, in the order forward needs them
  double update_s = 0;
  double offload_s = 0;         // over the links to the host and its files, before the update
  double held_bytes = 0;        // all the step long
  double activation_bytes = 0;  // of one chunk and micro-batch
};

// Everything an event simulation needs to know of a step; what stands behind it need not be the cost model.
struct StepInput {
  parallel::Schedule schedule;
  Placement placement = Placement::round;
  bool together = true;           // schedules.h
  std::vector<StageTime> pieces;  // by piece, in the model's order
  Wire boundary;                  // from stage to stage, either direction
  std::vector<StageInput> stages;
  bool overlap_sums = true, overlap_sends = true;
  double beside = 0;  // of a collective's time, what it costs the kernels it runs beside
  double inside_bandwidth = 0, across_bandwidth = 0;  // of one device's port, bytes/s; 0: boundless
  double step_s = 0;                                  // of the host, at the end
  int copies = 1;                                     // of the model
  // Where devices are threads of one machine: its cores, how many ranks one device stands for, and how many threads
  // each of them runs. 0: every device has a processor of its own.
  double cores = 0, ranks_of_device = 1, threads_of_rank = 1;
  std::vector<std::vector<double>> slowdown;  // by copy and stage; empty: 1 everywhere
};

struct DeviceUse {
  int copy = 0, stage = 0;  // the first of the copies folded into it
  int folded = 1;           // copies
  double compute_s = 0;     // busy
  double waiting_s = 0;     // idle until its copy has computed all: the bubble, and messages that show
  double after_s = 0;       // from there to the end but for the update: sums that show
  double sending_s = 0;     // what it sends to other stages, both directions
  double offload_s = 0;     // its link to the host
  double summing_s = 0;     // its part in sums and gathers
  double peak_bytes = 0;
};

struct StepSimulation {
  double step_s = 0;
  double compute_s = 0, bubble_s = 0, exposed_s = 0, update_s = 0;  // of the device that computes longest
  double bubble = 0;                                                // idle over busy, all devices
  std::vector<DeviceUse> devices;
  uint64_t events = 0, tasks = 0;
};

// `trace`, where given, becomes a trace that Perfetto opens.
StepSimulation simulate_step(const StepInput& input, Json* trace = nullptr);

// A rank that is slower than the others: its compute takes `factor` times as long.
struct Straggler {
  int rank = 0;
  double factor = 1;
};
// What the cost model says of a policy, as events. UsageError: a schedule without a list of actions, a rank out of
// range.
StepInput step_input(const Shape& shape, const Cluster& cluster, const Policy& policy,
                     const std::vector<Straggler>& stragglers = {});

}  // namespace esp::plan
