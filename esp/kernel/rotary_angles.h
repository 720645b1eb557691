// By how much rotary positions turn (Su et al. 2021): at position p, pair d of a head of D dimensions turns by
// p·theta^(−2d/D). And what stretches that for texts longer than those a model first learned from:
//
//   linear  Chen et al. 2023   every frequency is divided by `factor`
//   yarn    Peng et al. 2023   pairs that turn beta_fast times within the original length stay as they are, those that
//   turn
//                              beta_slow times are divided, a ramp over the pairs between; q and k grow by
//                              attention_factor
//   llama3  Llama 3.1, 2024    the same idea with a ramp over frequencies: whoever turns high_freq_factor times stays,
//                              low_freq_factor times is divided
//
// Every body of the kernel, every piece of a sequence and every generated token takes its angles from here.
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

// The same, worked out for heads of one size as far as no pair is needed. Plain numbers: a GPU takes them as they are.
struct RotaryFrequencies {
  double divided = 1;                                // 1 / factor
  double kept = 1, per_frequency = 0, per_pair = 0;  // share that is not divided, before it is held to [0, 1]
  double size = 1;                                   // of cosine and sine

  // Of a pair whose frequency without scaling is `plain`.
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
