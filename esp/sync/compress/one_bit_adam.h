// 1-bit Adam (Tang et al. 2021), sync.feedback = "onebit_adam". For the first onebit_warmup steps replicas all-reduce
// their gradients and run Adam. Then the variance v is frozen and the momentum is exchanged as signs
// (one_bit_momentum.h):
//
//   m_i = β₁·m + (1 − β₁)·g_i;  m = mean of the m_i, compressed to signs with doublesqueeze;  w −= γ·m/(√v + ε)
//
// There is no bias correction. Elements without an earlier gradient (v = 0) stay unchanged, because a sign cannot
// encode 0. After the warm-up gradients are no longer summed, so the gradient norm (reported, and used for clipping) is
// the root mean square of the ranks' norms: an upper bound of the norm of their mean.
#pragma once

#include "esp/sync/strategy.h"

namespace esp::sync {

inline bool is_one_bit_adam(std::string_view feedback) {
  return feedback == "onebit_adam";
}
void check_one_bit_adam(const Options& options);  // throws UsageError for options that 1-bit Adam does not support
std::unique_ptr<Strategy> make_one_bit_adam(const Setup& setup);

}  // namespace esp::sync
