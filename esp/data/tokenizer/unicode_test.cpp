#include "esp/data/tokenizer/unicode.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace esp::data {
namespace {

int class_of(uint32_t point) {
  return point_cell(point) & kClassMask;
}

TEST(Unicode, ClassifiesKnownCharacters) {
  EXPECT_EQ(class_of('a'), kLower);
  EXPECT_EQ(class_of('Z'), kUpper);
  EXPECT_EQ(class_of('7'), kNumber);
  EXPECT_EQ(class_of('\n'), kNewline);
  EXPECT_EQ(class_of(0x3000), kSpace);
  EXPECT_EQ(class_of(0x01C5), kUpper);        // title case
  EXPECT_EQ(class_of(0x3042), kOtherLetter);  // hiragana
  EXPECT_EQ(class_of(0x0301), kMark);
  EXPECT_EQ(class_of(0x00BD), kNumber);  // one half
  EXPECT_EQ(class_of(0x1C89), kUpper);   // new in Unicode 16
  EXPECT_EQ(class_of(0x200D), kOther);
  EXPECT_EQ(class_of(kNoPoint), kOther);
}

TEST(Unicode, RoundTripsAndRejectsInvalidUtf8) {
  for (uint32_t point = 0; point < 0x110000; point += point < 0x11000 ? 1 : 37) {
    if (point >= 0xD800 && point < 0xE000) continue;
    std::string text;
    append_point(text, point);
    Point read = read_point(text.data(), text.size());
    ASSERT_EQ(read.value, point);
    ASSERT_EQ(read.bytes, text.size());
    if (text.size() == 1) continue;
    ASSERT_EQ(read_point(text.data(), text.size() - 1).value, kNoPoint);  // truncated sequence
  }
  for (std::string_view wrong : {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x80\x80", "\xED\xA0\x80", "\xF0\x80\x80\x80",
                                 "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\xC3\x28"}) {
    Point read = read_point(wrong.data(), wrong.size());
    EXPECT_EQ(read.value, kNoPoint);
    EXPECT_EQ(read.bytes, 1u);
  }
  EXPECT_EQ(to_points("a\xFF\u00E9"), (std::vector<uint32_t>{'a', kReplacement, 0xE9}));
}

TEST(Unicode, DecomposesInCanonicalOrder) {
  EXPECT_EQ(decompose({0x1EA5}), (std::vector<uint32_t>{'a', 0x302, 0x301}));
  EXPECT_EQ(decompose({0xAC01}), (std::vector<uint32_t>{0x1100, 0x1161, 0x11A8}));
  EXPECT_EQ(decompose({'a', 0x301, 0x323}), (std::vector<uint32_t>{'a', 0x323, 0x301}));
}

TEST(Unicode, LowercasesSingleCharacters) {
  auto lower = [](uint32_t point) {
    std::vector<uint32_t> points;
    append_lower(points, point);
    return points;
  };
  EXPECT_EQ(lower('Q'), std::vector<uint32_t>{'q'});
  EXPECT_EQ(lower(0x3A3), std::vector<uint32_t>{0x3C3});
  EXPECT_EQ(lower(0x130), (std::vector<uint32_t>{'i', 0x307}));
  EXPECT_EQ(lower(0x4E2D), std::vector<uint32_t>{0x4E2D});
}

}  // namespace
}  // namespace esp::data
