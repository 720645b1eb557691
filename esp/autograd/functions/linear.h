// Linear layers on rows: y = x·W + b with W [in, out], and the fused two-layer MLP.
#pragma once

#include "esp/autograd/tape.h"
#include "esp/kernel/activation.h"

namespace esp::autograd {

// x [.., in] → [.., out]. `b` may be null.
Variable linear(Tape& tape, const Variable& x, Weight& w, Weight* b);

// MLP: act(x·W1 + b1)·W2 + b2, one node. The activation (from 32 bits up) and its derivative are GEMM epilogues. With
// `keep` false the activation's output is recomputed in backward; the bits are the same, except on a GPU, where a GELU
// epilogue is applied before rounding.
Variable mlp(Tape& tape, const Variable& x, Weight& w1, Weight* b1, kernel::Activation activation, Weight& w2,
             Weight* b2, bool keep = true);

// SwiGLU MLP: (silu(g) ∘ u)·W2 + b2 where x·W1 + b1 = [g | u], W1 [in, 2·hidden]. `keep` as above.
Variable gated_mlp(Tape& tape, const Variable& x, Weight& w1, Weight* b1, Weight& w2, Weight* b2, bool keep = true);

}  // namespace esp::autograd
