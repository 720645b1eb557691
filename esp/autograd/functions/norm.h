// LayerNorm and RMSNorm, alone or fused with the residual addition before them.
#pragma once

#include <utility>

#include "esp/autograd/tape.h"
#include "esp/kernel/norm.h"

namespace esp::autograd {

// `beta` is null for RMSNorm (and for a LayerNorm without bias).
Variable norm(Tape& tape, const Variable& x, Weight& gamma, Weight* beta, kernel::NormKind kind, double eps);

// sum = x + branch, y = norm(sum). The residual stream continues with `sum`.
struct ResidualNorm {
  Variable sum, y;
};
ResidualNorm residual_norm(Tape& tape, const Variable& x, const Variable& branch, Weight& gamma, Weight* beta,
                           kernel::NormKind kind, double eps);

}  // namespace esp::autograd
