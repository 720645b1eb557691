#include "esp/kernel/bit_pack.h"

#include <algorithm>
#include <cstring>

namespace esp::kernel {

void pack_bits(void* to, const uint16_t* numbers, int64_t count, int bits) {
  auto* bytes = static_cast<uint8_t*>(to);
  uint64_t held = 0;
  int filled = 0;
  for (int64_t i = 0; i < count; ++i) {
    held |= uint64_t{numbers[i]} << filled;
    filled += bits;
    if (filled >= 32) {
      const auto word = static_cast<uint32_t>(held);
      std::memcpy(bytes, &word, 4);
      bytes += 4;
      held >>= 32;
      filled -= 32;
    }
  }
  std::memcpy(bytes, &held, static_cast<size_t>((filled + 7) / 8));
}

void unpack_bits(uint16_t* numbers, const void* from, int64_t count, int bits) {
  const auto* bytes = static_cast<const uint8_t*>(from);
  const auto end = static_cast<int64_t>(packed_bytes(count, bits));
  const uint32_t mask = (1u << bits) - 1;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = i * bits / 8;
    uint32_t word = 0;  // 16 bits from any bit of a byte lie within three
    if (at + 4 <= end) {
      std::memcpy(&word, bytes + at, 4);
    } else {
      std::memcpy(&word, bytes + at, static_cast<size_t>(end - at));
    }
    numbers[i] = static_cast<uint16_t>(word >> (i * bits % 8) & mask);
  }
}

}  // namespace esp::kernel
