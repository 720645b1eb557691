// 1-bit Adam (Tang et al. 2021), sync.feedback = "onebit_adam": replicas all-reduce their gradients for the first
// onebit_warmup steps of Adam; then the variance is frozen and the momentum is exchanged as signs (one_bit_momentum.h):
//
//   m_i = β₁·m + (1 − β₁)·g_i;  m = two-phase mean of m_i as signs with error feedback;  w −= γ·m/(√v + ε)
//
// without bias correction. Elements without an earlier gradient (v = 0) stay unchanged, because a sign cannot encode 0.
// The gradient norm (reported, and used for clipping) is then the root mean square of the ranks' norms, which is an
// upper bound of the norm of their mean: gradients are no longer summed.
#pragma once

#include "esp/sync/strategy.h"

namespace esp::sync {

inline bool is_one_bit_adam(std::string_view feedback) {
  return feedback == "onebit_adam";
}
void check_one_bit_adam(const Options& options);  // UsageError
std::unique_ptr<Strategy> make_one_bit_adam(const Setup& setup);

}  // namespace esp::sync
