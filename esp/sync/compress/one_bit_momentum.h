// Momentum exchange of 1-bit Adam (Tang et al. 2021) after the variance is frozen: one bit per value.
//
// m_i = β₁·m + (1 − β₁)·g_i with the shared momentum m; m = two-phase all-reduce of the signs of m_i, where both phases
// keep the residual (doublesqueeze).
#pragma once

#include <memory>

#include "esp/sync/compress/error_feedback.h"

namespace esp::sync {

class OneBitMomentum {
 public:
  // Uses the compressor `sign`; the setup's compressor is ignored.
  explicit OneBitMomentum(AggregationSetup setup);
  // momentum: the shared momentum, updated in place. `mask` (count values 0 or 1, of the setup's type; null: all 1)
  // marks the elements whose gradient can be nonzero, because a sign cannot encode 0.
  void exchange(void* momentum, const void* gradient, double beta1, const void* mask);
  Feedback& errors() { return *ranks_; }

 private:
  const AggregationSetup setup_;
  const std::unique_ptr<Compressor> sign_;
  std::unique_ptr<Feedback> ranks_;
  tensor::Tensor own_, part_;
};

}  // namespace esp::sync
