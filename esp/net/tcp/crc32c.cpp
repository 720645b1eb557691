// The crc32 instruction processes 8 bytes with a latency of three cycles and a throughput of one per cycle. Three CRCs
// over adjacent blocks are therefore computed in parallel. To join them, a table advances each of the first two CRCs
// over the block that follows it. Four look-ups suffice, because the CRC of zeros is linear in its initial value.
#include "esp/net/tcp/crc32c.h"

#include <array>
#include <cstring>

namespace esp::net {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78u;
constexpr size_t kBlock = 4096;  // bytes of each of the three blocks

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? kPolynomial : 0);
    table[byte] = crc;
  }
  return table;
}
constexpr auto kTable = make_table();

uint32_t raw_reference(uint32_t crc, const unsigned char* data, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) crc = (crc >> 8) ^ kTable[(crc ^ data[i]) & 0xff];
  return crc;
}

// shift[k][b]: the raw CRC of kBlock zeros starting from b << 8k.
using ShiftTable = std::array<std::array<uint32_t, 256>, 4>;

ShiftTable make_shift() {
  std::array<uint32_t, 32> of_bit{};
  for (int bit = 0; bit < 32; ++bit) {
    uint32_t crc = 1u << bit;
    for (size_t i = 0; i < kBlock; ++i) crc = (crc >> 8) ^ kTable[crc & 0xff];
    of_bit[static_cast<size_t>(bit)] = crc;
  }
  ShiftTable shift{};
  for (size_t k = 0; k < 4; ++k)
    for (uint32_t byte = 0; byte < 256; ++byte)
      for (size_t bit = 0; bit < 8; ++bit)
        if (byte >> bit & 1) shift[k][byte] ^= of_bit[8 * k + bit];
  return shift;
}

#if defined(__x86_64__)

const ShiftTable& shift_table() {
  static const ShiftTable table = make_shift();
  return table;
}

uint32_t past_block(const ShiftTable& shift, uint32_t crc) {
  return shift[0][crc & 0xff] ^ shift[1][crc >> 8 & 0xff] ^ shift[2][crc >> 16 & 0xff] ^ shift[3][crc >> 24];
}

uint64_t word_at(const unsigned char* data) {
  uint64_t word;
  std::memcpy(&word, data, sizeof word);
  return word;
}

__attribute__((target("sse4.2"))) uint32_t raw_hardware(uint32_t crc, const unsigned char* data, size_t bytes) {
  if (bytes >= 3 * kBlock) {
    const ShiftTable& shift = shift_table();
    for (; bytes >= 3 * kBlock; data += 3 * kBlock, bytes -= 3 * kBlock) {
      uint64_t a = crc, b = 0, c = 0;
      for (size_t i = 0; i < kBlock; i += 8) {
        a = __builtin_ia32_crc32di(a, word_at(data + i));
        b = __builtin_ia32_crc32di(b, word_at(data + kBlock + i));
        c = __builtin_ia32_crc32di(c, word_at(data + 2 * kBlock + i));
      }
      uint32_t joined = past_block(shift, static_cast<uint32_t>(a)) ^ static_cast<uint32_t>(b);
      crc = past_block(shift, joined) ^ static_cast<uint32_t>(c);
    }
  }
  uint64_t wide = crc;
  for (; bytes >= 8; data += 8, bytes -= 8) wide = __builtin_ia32_crc32di(wide, word_at(data));
  crc = static_cast<uint32_t>(wide);
  for (; bytes > 0; ++data, --bytes) crc = __builtin_ia32_crc32qi(crc, *data);
  return crc;
}

bool has_instruction() {
  static const bool has = __builtin_cpu_supports("sse4.2");
  return has;
}

#endif

}  // namespace

uint32_t crc32c_reference(uint32_t crc, const void* data, size_t bytes) {
  return ~raw_reference(~crc, static_cast<const unsigned char*>(data), bytes);
}

uint32_t crc32c(uint32_t crc, const void* data, size_t bytes) {
#if defined(__x86_64__)
  if (has_instruction()) return ~raw_hardware(~crc, static_cast<const unsigned char*>(data), bytes);
#endif
  return crc32c_reference(crc, data, bytes);
}

}  // namespace esp::net
