// A problem trained by real ranks through the strategies' seam: each rank is a node and takes the gradients of its f_i.
//
// The order of a step is the trainer's (strategy.h). Every rank calls with its own communicator and the same settings;
// x lies in fp64 unless said, cut into units of uneven sizes.
#pragma once

#include <functional>

#include "esp/sync/problems/problem.h"
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
  // After each step, with this rank's own copy.
  std::function<void(int64_t step, std::span<const double> x, Strategy&)> seen;
};

// This rank's x at the end. The method keeps whole copies: allreduce, gossip, local, diloco.
std::vector<double> drive(const Problem& problem, comm::Communicator* ranks, const DriveOptions& options);

// Ranks as threads of this process; what `body` throws is thrown.
void on_ranks(int size, const std::function<void(comm::Communicator*)>& body);

}  // namespace esp::sync
