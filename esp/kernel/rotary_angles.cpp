#include "esp/kernel/rotary_angles.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace esp::kernel {
namespace {

// YaRN: pairs up to `first` keep their frequency, pairs from `last` on have their frequency divided by the factor, and
// a ramp connects the two. `first` and `last` are rounded to whole pairs, as in the common YaRN implementations.
void ramp_over_pairs(RotaryFrequencies& f, const RotaryAngles& a, int64_t head_dim) {
  auto pair_that_turns = [&](double times) {
    const double wavelength = static_cast<double>(a.original_seq_len) / times;
    return static_cast<double>(head_dim) * std::log(wavelength / (2 * std::numbers::pi)) / (2 * std::log(a.theta));
  };
  const double first = std::max(std::floor(pair_that_turns(a.beta_fast)), 0.0);
  const double last = std::min(std::ceil(pair_that_turns(a.beta_slow)), static_cast<double>(head_dim - 1));
  const double length = first == last ? 0.001 : last - first;
  f.kept = 1 + first / length;
  f.per_pair = -1 / length;
  f.size = a.attention_factor > 0 ? a.attention_factor : 0.1 * std::log(a.factor) + 1;
}

void ramp_over_frequencies(RotaryFrequencies& f, const RotaryAngles& a) {
  const double length = a.high_freq_factor - a.low_freq_factor;
  f.kept = -a.low_freq_factor / length;
  f.per_frequency = static_cast<double>(a.original_seq_len) / (2 * std::numbers::pi) / length;
}

}  // namespace

RotaryFrequencies rotary_frequencies(const RotaryAngles& angles, int64_t head_dim) {
  RotaryFrequencies f;
  if (angles.scaling == RopeScaling::none) return f;
  f.divided = 1 / angles.factor;
  if (angles.scaling == RopeScaling::linear) f.kept = 0;
  if (angles.scaling == RopeScaling::yarn) ramp_over_pairs(f, angles, head_dim);
  if (angles.scaling == RopeScaling::llama3) ramp_over_frequencies(f, angles);
  return f;
}

double plain_frequency(const RotaryAngles& angles, int64_t pair, int64_t head_dim) {
  return std::pow(angles.theta, -2 * static_cast<double>(pair) / static_cast<double>(head_dim));
}

}  // namespace esp::kernel
