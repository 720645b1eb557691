// Rotary position angles (RoPE, Su et al. 2021): at position p, pair d of a head of D dimensions rotates by
// p·theta^(−2d/D). Scaling for contexts longer than the training length:
//
//   linear  Chen et al. 2023   every frequency is divided by `factor`
//   yarn    Peng et al. 2023   pairs that rotate beta_fast times within the original length are unchanged, those
//                              that rotate beta_slow times are divided, with a ramp over the pairs between; q and
//                              k are multiplied by attention_factor
//   llama3  Llama 3.1, 2024    the same with a ramp over frequencies: unchanged at high_freq_factor rotations,
//                              divided at low_freq_factor rotations
//
// All implementations of the kernel, context-parallel ranks and generation use these angles.
#pragma once

#include <cstdint>

namespace esp::kernel {

enum class RopeScaling : uint8_t { none, linear, yarn, llama3 };

struct RotaryAngles {
  double theta = 10000;  // 0: no rotary positions
  RopeScaling scaling = RopeScaling::none;
  double factor = 1;
  int64_t original_seq_len = 0;                      // yarn, llama3
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3
  double beta_fast = 32, beta_slow = 1;              // yarn
  double attention_factor = 0;                       // yarn; 0: 0.1·ln(factor) + 1

  bool operator==(const RotaryAngles&) const = default;
};

// Precomputed values for one head size. Plain numbers, passed to GPU kernels by value.
struct RotaryFrequencies {
  double divided = 1;                                // 1 / factor
  double kept = 1, per_frequency = 0, per_pair = 0;  // undivided share, before clamping to [0, 1]
  double size = 1;                                   // factor of cosine and sine

  // Scaled frequency of a pair whose unscaled frequency is `plain`.
  constexpr double scaled(double plain, int64_t pair) const {
    const double ramp = kept + per_frequency * plain + per_pair * static_cast<double>(pair);
    const double share = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
    return plain * (share + (1 - share) * divided);
  }
};

RotaryFrequencies rotary_frequencies(const RotaryAngles& angles, int64_t head_dim);

// theta^(−2·pair/head_dim)
double plain_frequency(const RotaryAngles& angles, int64_t pair, int64_t head_dim);

}  // namespace esp::kernel
