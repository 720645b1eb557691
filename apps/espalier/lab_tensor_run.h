// One model over the ranks of a tensor axis, run by threads of this process: bytes sent and kept by a layer.
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
  model::ModelConfig model;  // its number of layers is ignored: a layer is the difference of two models
  bool sequence = false, keep_gathered = false;
};

// Of one layer and micro-batch, forward and backward.
struct TensorLayer {
  double bytes_per_rank = 0;          // sent, mean over the ranks
  std::map<comm::Op, int64_t> calls;  // of one rank
  double kept_bytes = 0;              // of activations, from forward to backward
  double loss = 0;                    // of the shorter model, equal on all ranks
};
TensorLayer measure_layer(const TensorCase& it);

// Bytes sent by all ranks for a chain of matrices, and the error of its result relative to one rank's.
struct ChainRun {
  uint64_t bytes = 0;
  double error = 0;
};
ChainRun measure_chain(const parallel::ChainPlan& plan);

}  // namespace esp::app
