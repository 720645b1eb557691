// Runs one model on the ranks of a tensor-parallel group, which are threads of this process. Measures the bytes that
// one layer sends and keeps.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "esp/comm/communicator.h"
#include "esp/model/config.h"
#include "esp/parallel/tp/chain.h"

namespace esp::app {

struct TensorCase {
  int num_ranks = 2;
  int64_t batch = 2, seq = 64;
  model::ModelConfig model;  // its number of layers is ignored: one layer is measured as the difference of two models
  bool sequence = false, keep_gathered = false;
};

// Measurements of one layer and one micro-batch, forward and backward.
struct TensorLayer {
  double bytes_per_rank = 0;          // bytes sent, mean over the ranks
  std::map<comm::Op, int64_t> calls;  // calls of one rank
  double kept_bytes = 0;              // bytes of activations kept from forward to backward
  double loss = 0;                    // loss of the model with fewer layers; equal on all ranks
};
TensorLayer measure_layer(const TensorCase& spec);

// Bytes that all ranks send for a chain of matrices, and the error of the result relative to that of one rank.
struct ChainRun {
  uint64_t bytes = 0;
  double error = 0;
};
ChainRun measure_chain(const parallel::ChainPlan& plan);

}  // namespace esp::app
