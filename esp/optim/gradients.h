// Gradient processing between backward and the optimizer step: norm, clipping, and the fp16 loss scale.
#pragma once

#include <cstdint>

#include "esp/nn/parameter.h"

namespace esp::optim {

// Σ g² over every parameter once, units in order; not finite when any gradient is not.
double sum_of_squares(const nn::ParameterList& parameters, const device::Stream& stream);

// min(1, limit/(norm + 1e-6)); 1 when limit is 0.
double clip_factor(double norm, double limit);

struct LossScaleOptions {
  double initial = 65536, least = 1, most = 16777216;
  int64_t growth_interval = 2000;
};

// Loss scale. Dynamic: halves when a gradient overflows (the step is skipped), doubles after `growth_interval` good
// steps.
class LossScale {
 public:
  static LossScale fixed() { return LossScale({1, 1, 1, 0}, false); }  // fp32, fp64, bf16
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
