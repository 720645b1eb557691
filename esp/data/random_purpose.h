// Random numbers of the data module are a function of (seed, purpose, index). All purposes are listed here, so that no
// two of them use the same random bits by accident.
#pragma once

#include <cstdint>

#include "esp/base/rng.h"

namespace esp::data {

enum class RandomPurpose : uint64_t {
  window_offset = 0x64617461'00000001,
  epoch_shift,
  item,
  mask_choice,
  mask_kind,
  mask_id,
  span_text,
  span_noise,
  synthetic_id,
};

// Uniform integer in [0, n): the high half of a 128-bit product. The bias is below n / 2^64.
inline uint64_t uniform_below(uint64_t n, uint64_t seed, RandomPurpose purpose, uint64_t index) {
  __extension__ using Uint128 = unsigned __int128;
  const uint64_t bits = random_bits(seed, static_cast<uint64_t>(purpose), index);
  return static_cast<uint64_t>((static_cast<Uint128>(bits) * n) >> 64);
}

inline double uniform_unit(uint64_t seed, RandomPurpose purpose, uint64_t index) {
  return random_unit(seed, static_cast<uint64_t>(purpose), index);
}

}  // namespace esp::data
