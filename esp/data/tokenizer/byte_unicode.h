// GPT-2's bytes_to_unicode: maps each byte to one printable character, so that a vocabulary of byte strings can be
// stored in JSON. Printable Latin-1 maps to itself; the other 68 bytes map to U+0100, U+0101, … in order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace esp::data {

uint32_t byte_to_unicode(uint8_t byte);
std::string bytes_to_unicode(std::string_view bytes);
// Returns nullopt if a character is not one of the 256.
std::optional<std::string> unicode_to_bytes(std::string_view letters);

}  // namespace esp::data
