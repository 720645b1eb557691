#include "esp/data/tokenizer/base64.h"

#include <array>
#include <cstdint>

namespace esp::data {
namespace {

constexpr std::array<int8_t, 256> kValues = [] {
  std::array<int8_t, 256> table{};
  for (int8_t& cell : table) cell = -1;
  int8_t next = 0;
  for (char c : std::string_view("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"))
    table[static_cast<uint8_t>(c)] = next++;
  return table;
}();

}  // namespace

std::optional<std::string> from_base64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  size_t padding = 0;
  while (padding < 2 && padding < text.size() && text[text.size() - 1 - padding] == '=') ++padding;
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  uint32_t bits = 0;
  for (size_t i = 0; i < text.size() - padding; ++i) {
    int8_t value = kValues[static_cast<uint8_t>(text[i])];
    if (value < 0) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(value);
    // Each character after the first of four completes a byte.
    if (i % 4 != 0) bytes += static_cast<char>(bits >> (6 - 2 * (i % 4)));
  }
  return bytes;
}

}  // namespace esp::data
