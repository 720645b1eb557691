// The local experts of a mixture-of-experts (MoE) layer: several MLPs, each applied to a contiguous range of rows
// (grouped GEMM).
#pragma once

#include <vector>

#include "esp/autograd/tape.h"
#include "esp/kernel/activation.h"

namespace esp::autograd {

// One expert: y = act(x·up + b)·down + b. If gated, `up` is [dim, 2·ffn], laid out [gate | up]. Biases may be null.
struct ExpertWeights {
  Weight *up = nullptr, *up_bias = nullptr, *down = nullptr, *down_bias = nullptr;
};

// The experts of a layer. All tapes share one ExpertSet, and it must outlive them. Either all weights are trained or
// none.
struct ExpertSet {
  std::vector<ExpertWeights> experts;
  std::vector<Weight*> weights;  // pointers to the weights of all experts
  kernel::Activation activation = kernel::Activation::gelu;
  bool gated = false;

  void add(const ExpertWeights& expert);
  bool trained() const { return !weights.empty() && weights.front()->trained; }
};

// x [M, dim]: the first counts[0] rows belong to the first expert, the next counts[1] rows to the second, and so on.
// `counts` is i64 [experts] on the host. For every row the result is bit-identical to mlp or gated_mlp (linear.h). An
// expert without rows still fetches its weights and reports its gradients, because other ranks may wait for them.
// `keep` has the same meaning as in linear.h.
Variable expert_rows(Tape& tape, const Variable& x, const tensor::Tensor& counts, const ExpertSet& set,
                     bool keep = true);

}  // namespace esp::autograd
