// What a code point is, as far as split patterns and BERT ask. The tables (unicode_tables.inc) say which Unicode
// versions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace esp::data {

// Each code point has one class; letters are told apart because o200k's pattern does.
enum PointClass : uint8_t { kOther, kSpace, kNewline, kNumber, kLower, kUpper, kOtherLetter, kMark };

inline constexpr uint32_t kNoPoint = 0xFFFFFFFF;  // a byte that is no UTF-8
inline constexpr uint32_t kReplacement = 0xFFFD;

// Cells of the table: the class in bits 0-2, then what BERT asks.
inline constexpr uint8_t kClassMask = 7, kBertDropped = 0x10, kBertPunctuation = 0x20, kNonSpacing = 0x40;
uint8_t point_cell(uint32_t point);
extern const uint8_t* const kAsciiCells;  // the first block: any byte below 0x80

struct Point {
  uint32_t value;  // kNoPoint where the byte at hand begins no valid sequence
  uint32_t bytes;  // 1 then
};
// Strict: no overlong forms, no surrogates, nothing beyond U+10FFFF. `left` is at least 1.
Point read_point(const char* text, size_t left);
void append_point(std::string& text, uint32_t point);
// Bytes that are no UTF-8 become U+FFFD, each its own.
std::vector<uint32_t> to_points(std::string_view text);

// Canonical decomposition in canonical order.
std::vector<uint32_t> decompose(const std::vector<uint32_t>& points);
// Appends the lower case of one character, whatever stands around it.
void append_lower(std::vector<uint32_t>& points, uint32_t point);

}  // namespace esp::data
