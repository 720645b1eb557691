// One training pass of a model by holders who divide it over the tensor axis, as threads of this process, with what the
// textbook keeps for backward (esp/parallel/textbook.h) or what layers keep otherwise; and what it gave and kept.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "esp/model/model.h"
#include "esp/parallel/regions.h"

namespace esp::parity {

struct ActivationPlan {
  model::ModelConfig config;
  bool textbook = false;
  int tp = 1;
  bool sequence = false;
  nn::RecomputeMode recompute = nn::RecomputeMode::none;
  DType dtype = DType::f64;
  int64_t batch = 2, tokens = 8;
};

struct ActivationSeen {
  double loss = 0;
  std::map<std::string, std::vector<double>> gradients;              // of the part that is here
  std::map<std::string, std::shared_ptr<nn::Parameter>> parameters;  // which part that is, without its values
  uint64_t kept = 0;  // bytes of activations held between forward and backward
  uint64_t peak = 0;  // of the whole pass
};

// By rank.
std::vector<ActivationSeen> run_pass(const ActivationPlan& plan);

// How far the losses and gradients of ranks are from the one holder's: the largest relative distance of any.
double distance(const std::vector<ActivationSeen>& ranks, const ActivationSeen& one);

// Of a block, on the rank that has most: what one more block adds.
struct BlockBytes {
  uint64_t kept = 0, peak = 0;
};
BlockBytes bytes_per_block(ActivationPlan plan);

// What a GPT block keeps in 16 bits by count: the textbook's, or ours.
double bytes_by_count(const ActivationPlan& plan);

}  // namespace esp::parity
