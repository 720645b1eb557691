#include "esp/optim/gradients.h"

#include <algorithm>

#include "esp/kernel/elementwise.h"

namespace esp::optim {

double sum_of_squares(const nn::ParameterList& parameters, const device::Stream& stream) {
  double sum = 0;
  for (const auto& unit : parameters.units())
    if (unit.grads.defined()) sum += kernel::sum_of_squares(unit.grads.data(), unit.count, unit.grads.dtype(), stream);
  return sum;
}

double clip_factor(double norm, double limit) {
  return limit > 0 ? std::min(1.0, limit / (norm + 1e-6)) : 1.0;
}

void LossScale::update(bool overflowed) {
  if (!dynamic_) return;
  if (overflowed) {
    scale_ = std::max(options_.least, scale_ / 2);
    good_steps_ = 0;
  } else if (++good_steps_ >= options_.growth_interval) {
    scale_ = std::min(options_.most, scale_ * 2);
    good_steps_ = 0;
  }
}

}  // namespace esp::optim
