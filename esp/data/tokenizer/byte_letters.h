// GPT-2's alphabet: each byte is spelled as one printable character, so that a vocabulary of bytes can live in JSON.
// Printable Latin-1 stands for itself; the other 68 bytes become U+0100, U+0101, … in order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace esp::data {

uint32_t letter_of_byte(uint8_t byte);
std::string spell_bytes(std::string_view bytes);
// Nothing when a character is outside the alphabet.
std::optional<std::string> unspell_bytes(std::string_view letters);

}  // namespace esp::data
