// Steps between backward and the optimizer: gradient norm, gradient clipping, and fp16 loss scaling.
#pragma once

#include <cstdint>

#include "esp/nn/parameter.h"

namespace esp::optim {

// Returns Σ g² over all parameters, in the order of the units; each parameter counts once. The sum is not finite if any
// gradient is not finite.
double sum_of_squares(const nn::ParameterList& parameters, const device::Stream& stream);

// Factor for gradient clipping: min(1, limit / (norm + 1e-6)). limit = 0 disables clipping (factor 1).
double clip_factor(double norm, double limit);

struct LossScaleOptions {
  double initial = 65536, least = 1, most = 16777216;
  int64_t growth_interval = 2000;
};

// Loss scale. A dynamic scale is halved when a gradient overflows (that step is skipped), and doubled after
// `growth_interval` steps without overflow.
class LossScale {
 public:
  static LossScale fixed() { return LossScale({1, 1, 1, 0}, false); }  // constant scale 1, for fp32, fp64 and bf16
  static LossScale dynamic() { return LossScale(LossScaleOptions{}, true); }
  explicit LossScale(const LossScaleOptions& options, bool dynamic)
      : options_(options), dynamic_(dynamic), scale_(options.initial) {}

  double scale() const { return scale_; }
  void update(bool overflowed);

  int64_t good_steps() const { return good_steps_; }
  void restore(double scale, int64_t good_steps) {
    scale_ = scale;
    good_steps_ = good_steps;
  }

 private:
  LossScaleOptions options_;
  bool dynamic_;
  double scale_;
  int64_t good_steps_ = 0;
};

}  // namespace esp::optim
