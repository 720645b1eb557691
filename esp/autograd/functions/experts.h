// Several perceptrons, each over its own run of rows: the experts a holder has.
#pragma once

#include <vector>

#include "esp/autograd/tape.h"
#include "esp/kernel/activation.h"

namespace esp::autograd {

// y = act(x·up + b)·down + b of one expert; gated, up is [dim, 2·ffn] laid out [gate | up]. Biases may be null.
struct ExpertWeights {
  Weight *up = nullptr, *up_bias = nullptr, *down = nullptr, *down_bias = nullptr;
};

// What all tapes point at; it outlives them. All of its weights are trained, or none.
struct ExpertSet {
  std::vector<ExpertWeights> experts;
  std::vector<Weight*> weights;  // all of them
  kernel::Activation activation = kernel::Activation::gelu;
  bool gated = false;

  void add(const ExpertWeights& expert);
  bool trained() const { return !weights.empty() && weights.front()->trained; }
};

// x [M, dim]: the first counts[0] rows are the first expert's, and so on; counts i64 [experts] on the host. Rows have
// the bits that perceptron and gated_perceptron (linear.h) give them. Experts without rows take part all the same:
// their values are asked for and their gradients reported, since holders elsewhere may wait for them. `keep` as in
// linear.h.
Variable expert_rows(Tape& tape, const Variable& x, const tensor::Tensor& counts, const ExpertSet& set,
                     bool keep = true);

}  // namespace esp::autograd
