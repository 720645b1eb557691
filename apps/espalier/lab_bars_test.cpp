#include "apps/espalier/lab_bars.h"

#include <gtest/gtest.h>

namespace esp::app {
namespace {

BarChart two_bars() {
  return {"Title & more", {"first", "second"}, "expected", {{"a", {2, 2}, 3, "note"}, {"long", {1, 0}, 0, ""}}};
}

TEST(BarChart, DrawsPartsToScale) {
  EXPECT_EQ(bars_text(two_bars(), 8),
            "Title & more\n"
            "  a    ████▓▓|▓  note\n"
            "  long ██        \n"
            "  █ first  ▓ second  | expected\n");
}

TEST(BarChart, DoesNotAccumulateRoundingOfSmallParts) {
  BarChart chart{"t", {"a", "b", "c"}, "", {{"x", {0.4, 0.4, 0.4}, 0, ""}, {"y", {10, 0, 0}, 0, ""}}};
  EXPECT_NE(bars_text(chart, 10).find("  x ▓           \n"), std::string::npos) << bars_text(chart, 10);
}

TEST(BarChart, DrawsEmptyChart) {
  const BarChart empty{"t", {"a"}, "", {{"x", {0}, 0, ""}}};
  EXPECT_NE(bars_text(empty, 10).find("  x "), std::string::npos);
  EXPECT_NE(bars_svg(empty).find("</svg>"), std::string::npos);
}

TEST(BarChart, EscapesTextInSvg) {
  const std::string svg = bars_svg(two_bars());
  EXPECT_NE(svg.find("Title &amp; more"), std::string::npos);
  EXPECT_EQ(svg.find("& more"), std::string::npos);
  EXPECT_NE(svg.find("class=\"mark\""), std::string::npos);
}

}  // namespace
}  // namespace esp::app
