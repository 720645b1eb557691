#include "esp/data/tokenizer/bert_text.h"

#include <algorithm>
#include <vector>

namespace esp::data {
namespace {

bool is_chinese(uint32_t p) {
  return (p >= 0x4E00 && p <= 0x9FFF) || (p >= 0x3400 && p <= 0x4DBF) || (p >= 0x20000 && p <= 0x2A6DF) ||
         (p >= 0x2A700 && p <= 0x2B73F) || (p >= 0x2B740 && p <= 0x2B81F) || (p >= 0x2B920 && p <= 0x2CEAF) ||
         (p >= 0xF900 && p <= 0xFAFF) || (p >= 0x2F800 && p <= 0x2FA1F);
}

std::string normalize_ascii(std::string_view text, const BertTextOptions& options) {
  std::string out;
  out.reserve(text.size());
  for (char letter : text) {
    uint8_t cell = kAsciiCells[static_cast<uint8_t>(letter)];
    if (options.clean_text) {
      if (cell & kBertDropped) continue;
      if ((cell & kClassMask) == kSpace || (cell & kClassMask) == kNewline) letter = ' ';
    }
    out += options.lower_case && letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter | 0x20) : letter;
  }
  return out;
}

}  // namespace

std::string normalize_bert(std::string_view text, const BertTextOptions& options) {
  if (std::none_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) >= 0x80; }))
    return normalize_ascii(text, options);
  std::vector<uint32_t> points = to_points(text), next;
  next.reserve(points.size() + 16);
  for (uint32_t point : points) {
    uint8_t cell = point_cell(point);
    if (options.clean_text) {
      if (cell & kBertDropped) continue;
      if ((cell & kClassMask) == kSpace || (cell & kClassMask) == kNewline) point = ' ';
    }
    bool apart = options.handle_chinese_chars && is_chinese(point);
    if (apart) next.push_back(' ');
    next.push_back(point);
    if (apart) next.push_back(' ');
  }
  if (options.strip_accents) {
    next = decompose(next);
    std::erase_if(next, [](uint32_t point) { return point_cell(point) & kNonSpacing; });
  }
  if (options.lower_case) {
    points.clear();
    for (uint32_t point : next) append_lower(points, point);
    next.swap(points);
  }
  std::string out;
  out.reserve(text.size());
  for (uint32_t point : next) append_point(out, point);
  return out;
}

}  // namespace esp::data
