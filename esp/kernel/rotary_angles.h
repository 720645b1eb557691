// Rotary position embeddings (RoPE, Su et al. 2021): at position p, pair d of a head of D dimensions rotates by the
// angle p·theta^(−2d/D). For contexts longer than the training length the frequencies are scaled:
//
//   linear  Chen et al. 2023   Every frequency is divided by `factor`.
//   yarn    Peng et al. 2023   Pairs with at least beta_fast rotations within original_seq_len keep their frequency.
//                              Pairs with at most beta_slow rotations have it divided by `factor`. In between, the
//                              scaling changes linearly with the pair number (a ramp). q and k are multiplied by
//                              attention_factor.
//   llama3  Llama 3.1, 2024    Frequencies with at least high_freq_factor rotations are unchanged. Frequencies with at
//                              most low_freq_factor rotations are divided by `factor`. In between, the scaling changes
//                              linearly with the frequency (a ramp).
//
// The CPU, GPU and ref kernels, context-parallel ranks and generation all use these angles.
#pragma once

#include <cstdint>

namespace esp::kernel {

enum class RopeScaling : uint8_t { none, linear, yarn, llama3 };

struct RotaryAngles {
  double theta = 10000;  // 0 means no rotary position embedding
  RopeScaling scaling = RopeScaling::none;
  double factor = 1;
  int64_t original_seq_len = 0;                      // training length in tokens; for yarn and llama3
  double low_freq_factor = 1, high_freq_factor = 4;  // for llama3
  double beta_fast = 32, beta_slow = 1;              // for yarn
  double attention_factor = 0;                       // for yarn; 0 means 0.1·ln(factor) + 1

  bool operator==(const RotaryAngles&) const = default;
};

// The scaling of RotaryAngles, precomputed for one head dimension. It has only plain numbers, because GPU kernels
// receive it by value.
struct RotaryFrequencies {
  double divided = 1;  // 1 / factor
  // For pair d with frequency f: ramp = kept + per_frequency·f + per_pair·d, clamped to [0, 1]. The ramp is the share
  // of the frequency that is not divided.
  double kept = 1, per_frequency = 0, per_pair = 0;
  double size = 1;  // factor by which cosine and sine are multiplied

  // Returns the scaled frequency of pair `pair`. `plain` is its frequency before scaling.
  constexpr double scaled(double plain, int64_t pair) const {
    const double ramp = kept + per_frequency * plain + per_pair * static_cast<double>(pair);
    const double share = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
    return plain * (share + (1 - share) * divided);
  }
};

RotaryFrequencies rotary_frequencies(const RotaryAngles& angles, int64_t head_dim);

// Returns the frequency of a pair before scaling: theta^(−2·pair/head_dim).
double plain_frequency(const RotaryAngles& angles, int64_t pair, int64_t head_dim);

}  // namespace esp::kernel
