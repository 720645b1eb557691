// Unicode properties of code points, as split patterns and BERT need them. unicode_tables.inc names the Unicode
// versions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace esp::data {

// Each code point has one class. Letters have several classes because o200k's pattern distinguishes them.
enum PointClass : uint8_t { kOther, kSpace, kNewline, kNumber, kLower, kUpper, kOtherLetter, kMark };

inline constexpr uint32_t kNoPoint = 0xFFFFFFFF;  // a byte that is not valid UTF-8
inline constexpr uint32_t kReplacement = 0xFFFD;

// A cell of the table: the class in bits 0-2, then the flags that BERT needs.
inline constexpr uint8_t kClassMask = 7, kBertDropped = 0x10, kBertPunctuation = 0x20, kNonSpacing = 0x40;
uint8_t point_cell(uint32_t point);
extern const uint8_t* const kAsciiCells;  // the first block of the table, for bytes below 0x80

struct Point {
  uint32_t value;  // kNoPoint for an invalid UTF-8 sequence
  uint32_t bytes;  // length of the sequence; 1 if invalid
};
// Strict UTF-8 decoder: rejects overlong forms, surrogates, and values above U+10FFFF. `left` must be at least 1.
Point read_point(const char* text, size_t left);
void append_point(std::string& text, uint32_t point);
// Each invalid byte becomes one U+FFFD.
std::vector<uint32_t> to_points(std::string_view text);

// Canonical decomposition (NFD).
std::vector<uint32_t> decompose(const std::vector<uint32_t>& points);
// Appends the lower case of one character, independent of its context.
void append_lower(std::vector<uint32_t>& points, uint32_t point);

}  // namespace esp::data
