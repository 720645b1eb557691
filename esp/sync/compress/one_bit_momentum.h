// What 1-bit Adam (Tang et al. 2021) exchanges once its variance is frozen: the momentum, one bit a value.
//
// m_i = β₁·m + (1 − β₁)·g_i of the shared momentum m; m = two-phase all-reduce of m_i in signs, with errors on both
// ways (feedback doublesqueeze).
#pragma once

#include <memory>

#include "esp/sync/compress/feedback.h"

namespace esp::sync {

class OneBitMomentum {
 public:
  // The setup's compressor is not asked: it is the sign.
  explicit OneBitMomentum(AggregationSetup setup);
  // momentum: the shared one before and after. `mask` (count values 0 or 1, of the setup's type; null: all 1) says
  // where gradients can be other than 0 at all: a sign cannot say 0.
  void exchange(void* momentum, const void* gradient, double beta1, const void* mask);
  Feedback& errors() { return *ranks_; }

 private:
  const AggregationSetup setup_;
  const std::unique_ptr<Compressor> sign_;
  std::unique_ptr<Feedback> ranks_;
  tensor::Tensor own_, part_;
};

}  // namespace esp::sync
