// One model divided over the ranks of a tensor axis, really run by threads of this process: what a layer sends and
// keeps.
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
  model::ModelConfig model;  // its layers do not matter: a layer is what a longer model has more
  bool sequence = false, keep_gathered = false;
};

// Of one layer and micro-batch, forward and backward.
struct TensorLayer {
  double bytes_per_rank = 0;          // sent, the mean over the ranks
  std::map<comm::Op, int64_t> calls;  // of one rank
  double kept_bytes = 0;              // of activations, from forward to backward
  double loss = 0;                    // of the shorter model, the same for all ranks
};
TensorLayer measure_layer(const TensorCase& it);

// Bytes that all ranks of a chain of matrices sent, and how far its result is from one rank's.
struct ChainRun {
  uint64_t bytes = 0;
  double error = 0;
};
ChainRun measure_chain(const parallel::ChainPlan& plan);

}  // namespace esp::app
