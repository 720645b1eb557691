// Several MLPs, each over its own run of rows: the local experts.
#pragma once

#include <vector>

#include "esp/autograd/tape.h"
#include "esp/kernel/activation.h"

namespace esp::autograd {

// y = act(x·up + b)·down + b of one expert; gated: up is [dim, 2·ffn] laid out [gate | up]. Biases may be null.
struct ExpertWeights {
  Weight *up = nullptr, *up_bias = nullptr, *down = nullptr, *down_bias = nullptr;
};

// Shared by all tapes and outlives them. Either all of its weights are trained or none.
struct ExpertSet {
  std::vector<ExpertWeights> experts;
  std::vector<Weight*> weights;  // all of them
  kernel::Activation activation = kernel::Activation::gelu;
  bool gated = false;

  void add(const ExpertWeights& expert);
  bool trained() const { return !weights.empty() && weights.front()->trained; }
};

// x [M, dim]: the first counts[0] rows belong to the first expert, and so on; counts i64 [experts] on the host. Rows
// are bit-identical to mlp and gated_mlp (linear.h). Experts without rows take part: their values are requested and
// their gradients reported, because other ranks may wait for them. `keep` as in linear.h.
Variable expert_rows(Tape& tape, const Variable& x, const tensor::Tensor& counts, const ExpertSet& set,
                     bool keep = true);

}  // namespace esp::autograd
