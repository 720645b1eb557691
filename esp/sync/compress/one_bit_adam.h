// 1-bit Adam (Tang et al. 2021), sync.feedback = "onebit_adam": copies that sum their gradients for the first
// onebit_warmup steps, each a step of Adam; then the variance is frozen and the momentum travels in signs
// (one_bit_momentum.h):
//
//   m_i = β₁·m + (1 − β₁)·g_i;  m = two-phase mean of m_i, in signs, with errors;  w −= γ·m/(√v + ε)
//
// without corrections for the beginning. Elements that had no gradient before (v = 0) stay as they are: a sign cannot
// say 0. The norm that is reported and clipped by is then the root mean square of the ranks' own, which is at least
// that of their mean: the gradients themselves are not added up any more.
#pragma once

#include "esp/sync/strategy.h"

namespace esp::sync {

inline bool is_one_bit_adam(std::string_view feedback) {
  return feedback == "onebit_adam";
}
void check_one_bit_adam(const Options& options);  // UsageError
std::unique_ptr<Strategy> make_one_bit_adam(const Setup& setup);

}  // namespace esp::sync
