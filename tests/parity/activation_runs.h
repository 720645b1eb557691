// One training pass of a tensor-parallel model, with its ranks as threads of this process. Reports loss, gradients and
// activation memory. For backward the layers keep either the activations of the textbook formula
// (esp/parallel/textbook.h), or those that Espalier keeps by default.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "esp/model/model.h"
#include "esp/parallel/model_parallel_ops.h"

namespace esp::parity {

struct ActivationRunSpec {
  model::ModelConfig config;
  bool textbook = false;
  int tp = 1;
  bool sequence = false;
  nn::RecomputeMode recompute = nn::RecomputeMode::none;
  DType dtype = DType::f64;
  int64_t batch = 2, tokens = 8;
};

struct ActivationResult {
  double loss = 0;
  std::map<std::string, std::vector<double>> gradients;  // parameter name → this rank's shard of the gradient
  // parameter name → its shape and sharding, without values
  std::map<std::string, std::shared_ptr<nn::Parameter>> parameters;
  uint64_t kept = 0;  // bytes of activations held between forward and backward
  uint64_t peak = 0;  // peak bytes of activations during the whole pass
};

// Runs one pass; returns the results indexed by rank.
std::vector<ActivationResult> run_training_pass(const ActivationRunSpec& spec);

// Compares the results of `ranks` with those of a single rank. Returns the largest relative error of any loss or
// gradient.
double max_relative_error(const std::vector<ActivationResult>& ranks, const ActivationResult& one);

// Activation bytes that one additional block needs, on the rank with the largest value.
struct BlockBytes {
  uint64_t kept = 0, peak = 0;
};
BlockBytes bytes_per_block(ActivationRunSpec spec);

// Bytes that a GPT block keeps in 16 bits: by the textbook formula if spec.textbook is set, otherwise by the formula of
// Espalier's default.
double expected_block_bytes(const ActivationRunSpec& spec);

}  // namespace esp::parity
