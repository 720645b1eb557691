// Counter-based random numbers: Philox4x32-10 (Salmon et al. 2011). A number depends only on its key and counter. Every
// distribution of work over ranks, and every recomputation, therefore draws the same numbers.
#pragma once

#include <array>
#include <cstdint>

namespace esp {

inline std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    uint64_t a = uint64_t{0xD2511F53u} * counter[0];
    uint64_t b = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

// 64 random bits for element `index` of stream (seed, purpose).
inline uint64_t random_bits(uint64_t seed, uint64_t purpose, uint64_t index) {
  auto words = philox({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), static_cast<uint32_t>(purpose),
                       static_cast<uint32_t>(purpose >> 32)},
                      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return (uint64_t{words[1]} << 32) | words[0];
}

// Uniform in [0, 1) with 53 bits.
inline double random_unit(uint64_t seed, uint64_t purpose, uint64_t index) {
  return static_cast<double>(random_bits(seed, purpose, index) >> 11) * 0x1p-53;
}

}  // namespace esp
