// Packs small integers bit by bit, lowest bit first, without gaps: number i occupies bits [i·bits, (i + 1)·bits). The
// last byte is padded with 0. 1 to 16 bits. Any address.
#pragma once

#include <cstddef>
#include <cstdint>

namespace esp::kernel {

inline size_t packed_bytes(int64_t count, int bits) {
  return static_cast<size_t>((count * bits + 7) / 8);
}
void pack_bits(void* to, const uint16_t* numbers, int64_t count, int bits);
void unpack_bits(uint16_t* numbers, const void* from, int64_t count, int bits);

}  // namespace esp::kernel
