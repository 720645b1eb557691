// Steps of a whole model by holders who divide it over the tensor axis, as threads of this process, and what a test
// wants to know of them. Values and gradients are kept by name, in fp64.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "esp/comm/communicator.h"
#include "esp/model/model.h"
#include "esp/parallel/regions.h"

namespace esp::parity {

struct TensorPlan {
  model::ModelConfig config;
  int tp = 1;
  bool sequence = false, keep_gathered = false, overlap = true, training = true;
  int64_t piece_bytes = 512;
  bool rings = false;  // collectives that send the least
  nn::RecomputeMode recompute = nn::RecomputeMode::none;
  DType dtype = DType::f64;
  int64_t batch = 3, tokens = 8;
  int steps = 1, micro_batches = 1;
  double lr = 0.05;
};

struct Held {
  std::vector<double> values;     // of the part that is here, after the last step
  std::vector<double> gradients;  // of the last step
  bool divided = false;
  std::vector<double> part(const std::vector<double>& whole) const;  // of the whole's, what is here
  tensor::Shape shape, global_shape;
  int cut_dim = -1;
  std::vector<nn::IndexRange> sections;
};

struct TensorSeen {
  std::vector<double> losses;  // by step
  std::map<std::string, Held> parameters;
  std::vector<comm::CallStats> stats;  // of the tensor axis, from the steps alone
  std::vector<double> logits;          // of the first batch, before the steps
  uint64_t peak_activations = 0;
};

// By rank; one entry where tp is 1.
std::vector<TensorSeen> run_tensor(const TensorPlan& plan);

// The largest relative distance, over all losses, gradients and values, of ranks from the one holder.
double worst_distance(const std::vector<TensorSeen>& ranks, const TensorSeen& one);

}  // namespace esp::parity
