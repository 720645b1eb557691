// Every random choice of this room draws from (seed, purpose, index); the purposes stand together so that no two share
// bits by accident.
#pragma once

#include <cstdint>

#include "esp/base/rng.h"

namespace esp::data {

enum class Draw : uint64_t {
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

// Uniform in [0, n) by the high half of a product; the bias is below n / 2^64.
inline uint64_t draw_below(uint64_t n, uint64_t seed, Draw purpose, uint64_t index) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>((static_cast<Wide>(random_bits(seed, static_cast<uint64_t>(purpose), index)) * n) >> 64);
}

inline double draw_unit(uint64_t seed, Draw purpose, uint64_t index) {
  return random_unit(seed, static_cast<uint64_t>(purpose), index);
}

}  // namespace esp::data
