// Bit packing of small integers with `bits` bits each (1 to 16), without gaps, lowest bit first. Number i starts at bit
// i·bits. The last byte is padded with zero bits. Addresses need no alignment.
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
