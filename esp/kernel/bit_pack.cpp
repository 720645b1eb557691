#include "esp/kernel/bit_pack.h"

#include <algorithm>
#include <cstring>

namespace esp::kernel {
namespace {

// Packs groups of eight numbers of `kBits` bits, at most 8 bits: a group takes `kBits` bytes and fits in a 64-bit word.
// Each store writes 8 bytes, possibly past the end of its group. The function therefore leaves the last groups to the
// caller. Returns how many numbers it has packed.
template <int kBits>
int64_t pack_eights(uint8_t* to, const uint16_t* numbers, int64_t count) {
  int64_t i = 0;
  for (; i + 16 <= count && (count - i) * kBits / 8 >= 8; i += 8, to += kBits) {
    uint64_t word = 0;
    for (int k = 0; k < 8; ++k) word |= uint64_t{numbers[i + k]} << (k * kBits);
    std::memcpy(to, &word, 8);
  }
  return i;
}
template <int kBits>
int64_t unpack_eights(uint16_t* numbers, const uint8_t* from, int64_t count) {
  int64_t i = 0;
  for (; i + 16 <= count && (count - i) * kBits / 8 >= 8; i += 8, from += kBits) {
    uint64_t word;
    std::memcpy(&word, from, 8);
    for (int k = 0; k < 8; ++k) numbers[i + k] = static_cast<uint16_t>(word >> (k * kBits) & ((1u << kBits) - 1));
  }
  return i;
}

using Pack = int64_t (*)(uint8_t*, const uint16_t*, int64_t);
using Unpack = int64_t (*)(uint16_t*, const uint8_t*, int64_t);
constexpr Pack kPack[] = {nullptr,        pack_eights<1>, pack_eights<2>, pack_eights<3>, pack_eights<4>,
                          pack_eights<5>, pack_eights<6>, pack_eights<7>, pack_eights<8>};
constexpr Unpack kUnpack[] = {nullptr,          unpack_eights<1>, unpack_eights<2>, unpack_eights<3>, unpack_eights<4>,
                              unpack_eights<5>, unpack_eights<6>, unpack_eights<7>, unpack_eights<8>};

}  // namespace

void pack_bits(void* to, const uint16_t* numbers, int64_t count, int bits) {
  auto* bytes = static_cast<uint8_t*>(to);
  if (bits <= 8) {
    const int64_t done = kPack[bits](bytes, numbers, count);
    bytes += done * bits / 8;
    numbers += done;
    count -= done;
  }
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
  if (bits <= 8) {
    const int64_t done = kUnpack[bits](numbers, bytes, count);
    bytes += done * bits / 8;
    numbers += done;
    count -= done;
  }
  const auto end = static_cast<int64_t>(packed_bytes(count, bits));
  const uint32_t mask = (1u << bits) - 1;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = i * bits / 8;
    uint32_t word = 0;  // a number of 16 bits at any bit offset lies within three bytes
    if (at + 4 <= end) {
      std::memcpy(&word, bytes + at, 4);
    } else {
      std::memcpy(&word, bytes + at, static_cast<size_t>(end - at));
    }
    numbers[i] = static_cast<uint16_t>(word >> (i * bits % 8) & mask);
  }
}

}  // namespace esp::kernel
