// Training steps of tensor-parallel models, with ranks as threads of this process, and the results that tests compare.
// Weights and gradients are stored by name, in fp64.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "esp/comm/communicator.h"
#include "esp/model/model.h"
#include "esp/parallel/model_parallel_ops.h"

namespace esp::parity {

struct TensorRunSpec {
  model::ModelConfig config;
  int tp = 1;
  bool sequence = false, keep_gathered = false, overlap = true, training = true;
  int64_t piece_bytes = 512;
  bool rings = false;  // forces ring algorithms, which send the fewest bytes
  nn::RecomputeMode recompute = nn::RecomputeMode::none;
  DType dtype = DType::f64;
  int64_t batch = 3, tokens = 8;
  int steps = 1, micro_batches = 1;
  double lr = 0.05;
};

struct ParameterShard {
  std::vector<double> values;     // this rank's shard after the last step
  std::vector<double> gradients;  // this rank's shard of the gradient in the last step
  bool is_sharded = false;
  // Returns this rank's elements of the whole parameter.
  std::vector<double> part(const std::vector<double>& whole) const;
  tensor::Shape shape, global_shape;
  int cut_dim = -1;
  std::vector<nn::IndexRange> sections;
};

struct TensorRankResult {
  std::vector<double> losses;  // one loss per step
  std::map<std::string, ParameterShard> parameters;
  std::vector<comm::CallStats> stats;  // statistics of the tensor-parallel group's calls during the steps
  std::vector<double> logits;          // logits of the first batch, before the first step
  uint64_t peak_activations = 0;
};

// Runs the training. Returns one result per rank, indexed by rank.
std::vector<TensorRankResult> run_tensor_parallel(const TensorRunSpec& spec);

// Compares the results of `ranks` with those of a single rank. Returns the largest relative error of any loss, logit,
// gradient or weight.
double max_relative_error(const std::vector<TensorRankResult>& ranks, const TensorRankResult& one);

}  // namespace esp::parity
