// Philox random number generator (base/rng.h) on a GPU. Block b of the stream (seed, purpose) holds the random words 4b
// to 4b + 3.
#pragma once

#include <cstdint>

namespace esp::kernel::cuda {

// A Philox stream with the precomputed keys of all rounds. It is passed as a kernel argument, so that the keys are
// constant operands of the instructions.
struct Philox {
  static constexpr int kRounds = 10;
  uint32_t keys[kRounds][2];
  uint64_t purpose;

  Philox() = default;
  __host__ __device__ Philox(uint64_t seed, uint64_t of) : purpose(of) {
    auto low = static_cast<uint32_t>(seed), high = static_cast<uint32_t>(seed >> 32);
    for (auto& key : keys) {
      key[0] = low, key[1] = high;
      low += 0x9E3779B9u, high += 0xBB67AE85u;
    }
  }

  __device__ __forceinline__ uint4 block(uint64_t index) const {
    uint4 c = make_uint4(static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                         static_cast<uint32_t>(purpose), static_cast<uint32_t>(purpose >> 32));
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const uint64_t a = uint64_t{0xD2511F53u} * c.x, b = uint64_t{0xCD9E8D57u} * c.z;
      c = make_uint4(static_cast<uint32_t>(b >> 32) ^ c.y ^ keys[round][0], static_cast<uint32_t>(b),
                     static_cast<uint32_t>(a >> 32) ^ c.w ^ keys[round][1], static_cast<uint32_t>(a));
    }
    return c;
  }
};

__device__ __forceinline__ uint32_t word_of(const uint4& block, int which) {
  return which == 0 ? block.x : which == 1 ? block.y : which == 2 ? block.z : block.w;
}

}  // namespace esp::kernel::cuda
