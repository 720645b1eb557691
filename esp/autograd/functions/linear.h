// Linear layers: y = x·W + b with W [in, out], the fused two-layer MLP, and the gated MLP (SwiGLU).
#pragma once

#include "esp/autograd/tape.h"
#include "esp/kernel/activation.h"

namespace esp::autograd {

// x [.., in] → [.., out]. `b` may be null.
Variable linear(Tape& tape, const Variable& x, Weight& w, Weight* b);

// MLP as one tape node: act(x·W1 + b1)·W2 + b2. The activation's derivative is a GEMM epilogue; for fp32 and fp64 the
// activation itself is one too. If `keep` is false, backward recomputes the activation's output. Results with and
// without recomputation are bit-identical, except on a GPU, where a GELU epilogue is applied before rounding.
Variable mlp(Tape& tape, const Variable& x, Weight& w1, Weight* b1, kernel::Activation activation, Weight& w2,
             Weight* b2, bool keep = true);

// SwiGLU MLP: (silu(g) ∘ u)·W2 + b2 where x·W1 + b1 = [g | u], W1 [in, 2·hidden]. `keep` works as in `mlp`.
Variable gated_mlp(Tape& tape, const Variable& x, Weight& w1, Weight* b1, Weight& w2, Weight* b2, bool keep = true);

}  // namespace esp::autograd
