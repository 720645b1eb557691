#include "esp/data/tokenizer/unicode.h"

#include <algorithm>
#include <iterator>

namespace esp::data {
namespace {

struct PointRange {
  uint32_t first, last;
  int32_t value;
};

#include "esp/data/tokenizer/unicode_tables.inc"

int32_t value_in(const PointRange* begin, const PointRange* end, uint32_t point) {
  const PointRange* at =
      std::lower_bound(begin, end, point, [](const PointRange& range, uint32_t p) { return range.last < p; });
  return at != end && at->first <= point ? at->value : 0;
}

int combining_class(uint32_t point) {
  return point < 0x300 ? 0 : value_in(std::begin(kCombining), std::end(kCombining), point);
}

constexpr uint32_t kHangul = 0xAC00, kHangulCount = 11172, kLead = 0x1100, kVowel = 0x1161, kTail = 0x11A7;

void append_decomposed(std::vector<uint32_t>& points, uint32_t point) {
  if (point < 0xC0) {
    points.push_back(point);
  } else if (point - kHangul < kHangulCount) {
    uint32_t index = point - kHangul;
    points.push_back(kLead + index / (21 * 28));
    points.push_back(kVowel + index % (21 * 28) / 28);
    if (index % 28) points.push_back(kTail + index % 28);
  } else {
    const uint32_t* at = std::lower_bound(std::begin(kDecomposed), std::end(kDecomposed), point);
    if (at == std::end(kDecomposed) || *at != point) {
      points.push_back(point);
      return;
    }
    size_t row = static_cast<size_t>(at - std::begin(kDecomposed));
    points.insert(points.end(), kDecomposedInto + kDecomposedStart[row], kDecomposedInto + kDecomposedStart[row + 1]);
  }
}

bool continues(char byte) {
  return (static_cast<uint8_t>(byte) & 0xC0) == 0x80;
}

uint32_t low_six(char byte) {
  return static_cast<uint8_t>(byte) & 0x3Fu;
}

}  // namespace

const uint8_t* const kAsciiCells = kBlocks[0];

uint8_t point_cell(uint32_t point) {
  return point < 0x110000 ? kBlocks[kBlockOf[point >> 8]][point & 0xFF] : 0;
}

Point read_point(const char* text, size_t left) {
  uint8_t first = static_cast<uint8_t>(text[0]);
  if (first < 0x80) return {first, 1};
  if (first >= 0xC2 && first < 0xE0) {
    if (left >= 2 && continues(text[1])) return {(first & 0x1Fu) << 6 | low_six(text[1]), 2};
  } else if (first >= 0xE0 && first < 0xF0) {
    if (left >= 3 && continues(text[1]) && continues(text[2])) {
      uint32_t point = (first & 0x0Fu) << 12 | low_six(text[1]) << 6 | low_six(text[2]);
      if (point >= 0x800 && (point < 0xD800 || point >= 0xE000)) return {point, 3};
    }
  } else if (first >= 0xF0 && first < 0xF5) {
    if (left >= 4 && continues(text[1]) && continues(text[2]) && continues(text[3])) {
      uint32_t point = (first & 0x07u) << 18 | low_six(text[1]) << 12 | low_six(text[2]) << 6 | low_six(text[3]);
      if (point >= 0x10000 && point < 0x110000) return {point, 4};
    }
  }
  return {kNoPoint, 1};
}

void append_point(std::string& text, uint32_t point) {
  auto put = [&](uint32_t byte) { text += static_cast<char>(byte); };
  if (point < 0x80) {
    put(point);
  } else if (point < 0x800) {
    put(0xC0 | point >> 6);
    put(0x80 | (point & 0x3F));
  } else if (point < 0x10000) {
    put(0xE0 | point >> 12);
    put(0x80 | (point >> 6 & 0x3F));
    put(0x80 | (point & 0x3F));
  } else {
    put(0xF0 | point >> 18);
    put(0x80 | (point >> 12 & 0x3F));
    put(0x80 | (point >> 6 & 0x3F));
    put(0x80 | (point & 0x3F));
  }
}

std::vector<uint32_t> to_points(std::string_view text) {
  std::vector<uint32_t> points;
  points.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    Point point = read_point(text.data() + at, text.size() - at);
    points.push_back(point.value == kNoPoint ? kReplacement : point.value);
    at += point.bytes;
  }
  return points;
}

std::vector<uint32_t> decompose(const std::vector<uint32_t>& points) {
  std::vector<uint32_t> whole;
  whole.reserve(points.size());
  for (uint32_t point : points) append_decomposed(whole, point);
  // Canonical order: sorts each sequence of adjacent marks by combining class; marks of equal class keep their order.
  for (size_t at = 0; at < whole.size();) {
    size_t end = at;
    while (end < whole.size() && combining_class(whole[end]) != 0) ++end;
    if (end - at > 1)
      std::stable_sort(whole.begin() + static_cast<ptrdiff_t>(at), whole.begin() + static_cast<ptrdiff_t>(end),
                       [](uint32_t a, uint32_t b) { return combining_class(a) < combining_class(b); });
    at = std::max(end, at + 1);
  }
  return whole;
}

void append_lower(std::vector<uint32_t>& points, uint32_t point) {
  if (point == 0x130) {  // capital I with dot above: the only letter whose lower case has two characters
    points.push_back('i');
    points.push_back(0x307);
    return;
  }
  int32_t distance = value_in(std::begin(kToLower), std::end(kToLower), point);
  points.push_back(static_cast<uint32_t>(static_cast<int32_t>(point) + distance));
}

}  // namespace esp::data
