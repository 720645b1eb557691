// Trains an optimization problem on real ranks through the Strategy interface: each rank is a node and computes the
// gradients of its f_i.
//
// A step has the same order as in the trainer (strategy.h). Every rank calls train_problem with its own communicator
// and the same settings. x is fp64 by default and is split into units of different sizes.
#pragma once

#include <functional>

#include "esp/sync/problems/optimization_problem.h"
#include "esp/sync/strategy.h"

namespace esp::sync {

struct ProblemTrainingOptions {
  Options sync;
  optim::OptimizerOptions optimizer{.name = "sgd", .momentum = 0};
  double lr = 0.05;
  int64_t steps = 100;
  DType storage = DType::f64;
  int ranks_per_node = 1;
  int units = 1;
  std::vector<double> start;  // initial x; empty: zeros
  // Called after each step with this rank's x.
  std::function<void(int64_t step, std::span<const double> x, Strategy&)> on_step;
};

// Returns this rank's final x. Supports the methods with whole replicas: allreduce, gossip, local, diloco.
std::vector<double> train_problem(const OptimizationProblem& problem, comm::Communicator* ranks,
                                  const ProblemTrainingOptions& options);

// Runs `body` on `size` ranks, which are threads of this process. Rethrows an error of `body`.
void run_on_ranks(int size, const std::function<void(comm::Communicator*)>& body);

}  // namespace esp::sync
