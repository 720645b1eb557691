// Trains an optimization problem with real ranks through the Strategy interface: each rank is a node and takes the
// gradients of its f_i.
//
// A step has the trainer's order (strategy.h). Every rank calls with its own communicator and the same settings; x is
// fp64 unless set, split into units of different sizes.
#pragma once

#include <functional>

#include "esp/sync/problems/optimization_problem.h"
#include "esp/sync/strategy.h"

namespace esp::sync {

struct DriveOptions {
  Options sync;
  optim::OptimizerOptions optimizer{.name = "sgd", .momentum = 0};
  double lr = 0.05;
  int64_t steps = 100;
  DType storage = DType::f64;
  int ranks_per_node = 1;
  int units = 1;
  std::vector<double> start;  // empty: zeros
  // Called after each step, with this rank's replica.
  std::function<void(int64_t step, std::span<const double> x, Strategy&)> seen;
};

// Returns this rank's x at the end. For methods with whole replicas: allreduce, gossip, local, diloco.
std::vector<double> drive(const OptimizationProblem& problem, comm::Communicator* ranks, const DriveOptions& options);

// Ranks as threads of this process; rethrows what `body` throws.
void on_ranks(int size, const std::function<void(comm::Communicator*)>& body);

}  // namespace esp::sync
