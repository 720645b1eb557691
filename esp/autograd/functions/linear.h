// Affine maps of rows: y = x·W + b with W [in, out], and the two-layer perceptron fused around its activation.
#pragma once

#include "esp/autograd/tape.h"
#include "esp/kernel/activation.h"

namespace esp::autograd {

// x [.., in] → [.., out]. `b` may be null.
Variable linear(Tape& tape, const Variable& x, Weight& w, Weight* b);

// act(x·W1 + b1)·W2 + b2, one node: the activation (from 32 bits up) and its derivative ride on the products. With
// `keep` false the activation's output is computed again for backward instead of being kept; the bits are the same,
// except on a GPU, where a product's GELU is of the argument before it is rounded.
Variable perceptron(Tape& tape, const Variable& x, Weight& w1, Weight* b1, kernel::Activation activation, Weight& w2,
                    Weight* b2, bool keep = true);

// (silu(g) ∘ u)·W2 + b2 where x·W1 + b1 = [g | u], W1 [in, 2·hidden]: SwiGLU. `keep` as above.
Variable gated_perceptron(Tape& tape, const Variable& x, Weight& w1, Weight* b1, Weight& w2, Weight* b2,
                          bool keep = true);

}  // namespace esp::autograd
