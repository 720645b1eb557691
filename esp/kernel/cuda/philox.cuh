// The words of base/rng.h on a GPU: block b of the stream (seed, purpose) holds words 4b … 4b + 3.
#pragma once

#include <cstdint>

namespace esp::kernel::cuda {

__device__ __forceinline__ uint4 philox_block(uint64_t seed, uint64_t purpose, uint64_t block) {
  uint4 c = make_uint4(static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), static_cast<uint32_t>(purpose),
                       static_cast<uint32_t>(purpose >> 32));
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * c.x, b = uint64_t{0xCD9E8D57u} * c.z;
    c = make_uint4(static_cast<uint32_t>(b >> 32) ^ c.y ^ k0, static_cast<uint32_t>(b),
                   static_cast<uint32_t>(a >> 32) ^ c.w ^ k1, static_cast<uint32_t>(a));
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

__device__ __forceinline__ uint32_t word_of(const uint4& block, int which) {
  return which == 0 ? block.x : which == 1 ? block.y : which == 2 ? block.z : block.w;
}

}  // namespace esp::kernel::cuda
