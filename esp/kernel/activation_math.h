// Scalar activation functions and their derivatives in double precision. The reference kernels round their results. The
// f64 vector kernels call them once per lane.
//
// Far from zero the results keep their relative accuracy, because no function subtracts two nearly equal values.
#pragma once

#include <cmath>
#include <numbers>
#include <type_traits>

#include "esp/base/check.h"
#include "esp/kernel/activation.h"

namespace esp::kernel {

// Calls f(std::integral_constant<Activation, activation>{}).
template <typename F>
void with_activation(Activation activation, F&& f) {
  switch (activation) {
    case Activation::none:
      return f(std::integral_constant<Activation, Activation::none>{});
    case Activation::relu:
      return f(std::integral_constant<Activation, Activation::relu>{});
    case Activation::gelu:
      return f(std::integral_constant<Activation, Activation::gelu>{});
    case Activation::gelu_erf:
      return f(std::integral_constant<Activation, Activation::gelu_erf>{});
    case Activation::silu:
      return f(std::integral_constant<Activation, Activation::silu>{});
    case Activation::tanh:
      return f(std::integral_constant<Activation, Activation::tanh>{});
  }
  ESP_CHECK(false, "activation: got the enum value {}; expected an esp::kernel::Activation",
            static_cast<int>(activation));
}

// gelu(x) = x · sigmoid(2u) with u = sqrt(2/π)·(x + 0.044715 x³): 2u = x·(kGelu1 + kGelu3·x²).
inline constexpr double kGelu1 = 1.5957691216057308, kGelu3 = kGelu1 * 0.044715;

inline double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

// Standard normal distribution: cumulative distribution function (cdf) and density (pdf).
inline double normal_cdf(double x) {
  return 0.5 * std::erfc(-x / std::numbers::sqrt2);
}
inline double normal_pdf(double x) {
  return std::exp(-0.5 * x * x) * (std::numbers::inv_sqrtpi / std::numbers::sqrt2);
}

template <Activation activation>
double activation_value(double x) {
  switch (activation) {
    case Activation::none:
      return x;
    case Activation::relu:
      return x < 0 ? 0 : x;  // a NaN stays a NaN
    case Activation::gelu:
      return x * sigmoid(x * (kGelu1 + kGelu3 * x * x));
    case Activation::gelu_erf:
      return x * normal_cdf(x);
    case Activation::silu:
      return x * sigmoid(x);
    case Activation::tanh:
      return std::tanh(x);
  }
}

template <Activation activation>
double activation_derivative(double x) {
  switch (activation) {
    case Activation::none:
      return 1;
    case Activation::relu:
      return x <= 0 ? 0 : 1;
    case Activation::gelu: {
      const double v = x * (kGelu1 + kGelu3 * x * x), s = sigmoid(v);
      return s + x * (kGelu1 + 3 * kGelu3 * x * x) * s * sigmoid(-v);
    }
    case Activation::gelu_erf:
      return normal_cdf(x) + x * normal_pdf(x);
    case Activation::silu: {
      const double s = sigmoid(x);
      return s + x * s * sigmoid(-x);
    }
    case Activation::tanh: {
      const double c = std::cosh(x);
      return 1 / (c * c);
    }
  }
}

}  // namespace esp::kernel
