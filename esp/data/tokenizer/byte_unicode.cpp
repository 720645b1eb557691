#include "esp/data/tokenizer/byte_unicode.h"

#include <array>

#include "esp/data/tokenizer/unicode.h"

namespace esp::data {
namespace {

constexpr bool is_itself(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
}

constexpr std::array<uint16_t, 256> kLetterOf = [] {
  std::array<uint16_t, 256> table{};
  uint16_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) table[byte] = is_itself(byte) ? static_cast<uint16_t>(byte) : next++;
  return table;
}();

constexpr std::array<int16_t, 0x144> kByteOf = [] {
  std::array<int16_t, 0x144> table{};
  for (int16_t& cell : table) cell = -1;
  for (uint32_t byte = 0; byte < 256; ++byte) table[kLetterOf[byte]] = static_cast<int16_t>(byte);
  return table;
}();

}  // namespace

uint32_t byte_to_unicode(uint8_t byte) {
  return kLetterOf[byte];
}

std::string bytes_to_unicode(std::string_view bytes) {
  std::string letters;
  for (char byte : bytes) append_point(letters, kLetterOf[static_cast<uint8_t>(byte)]);
  return letters;
}

std::optional<std::string> unicode_to_bytes(std::string_view letters) {
  std::string bytes;
  bytes.reserve(letters.size());
  for (size_t at = 0; at < letters.size();) {
    Point point = read_point(letters.data() + at, letters.size() - at);
    if (point.value >= kByteOf.size() || kByteOf[point.value] < 0) return std::nullopt;
    bytes += static_cast<char>(kByteOf[point.value]);
    at += point.bytes;
  }
  return bytes;
}

}  // namespace esp::data
