#include "apps/espalier/figure.h"

#include <gtest/gtest.h>

namespace esp::app {
namespace {

TEST(Figure, ParsesNumbersWithUnits) {
  struct Case {
    const char* text;
    double value, rounding;
    const char* quantity;
  };
  for (const Case& one : {Case{"31.4 GB", 31.4e9, 0.05e9, "bytes"},
                          {"80GB", 80e9, 0.5e9, "bytes"},
                          {"175B", 175e9, 0.5e9, ""},
                          {"175 B", 175, 0.5, "bytes"},
                          {"174,604,259,328", 174604259328.0, 0.5, ""},
                          {"0.44", 0.44, 0.005, ""},
                          {"~3.5 GB", 3.5e9, 0.05e9, "bytes"},
                          {"> 400 TFLOPS", 400e12, 0.5e12, "FLOP/s"},
                          {"400 Gb/s", 50e9, 0.0625e9, "bytes/s"},
                          {"$5M", 5e6, 0.5e6, "dollars"},
                          {"2.15 M$", 2.15e6, 0.005e6, "dollars"},
                          {"30 days on 800 A100", 30 * 86400.0, 43200, "time"},
                          {"278 ms, 150 ms", 0.278, 0.0005, "time"},
                          {"76.25 %, 2.2 h on 32 nodes", 0.7625, 0.00005, "share"},
                          {"1.2e-03", 1.2e-3, 0.05e-3, ""}}) {
    const auto figure = parse_figure(one.text);
    ASSERT_TRUE(figure) << one.text;
    EXPECT_DOUBLE_EQ(figure->value, one.value) << one.text;
    EXPECT_NEAR(figure->rounding, one.rounding, 1e-9 * one.rounding) << one.text;
    EXPECT_EQ(figure->quantity, one.quantity) << one.text;
  }
}

TEST(Figure, RejectsFormulasAndText) {
  for (const char* text :
       {"", "?", "2Φ + 14Φ/N", "4 + 4 + 4", "2(N−1)", "1/τ", "(K−1)·N/B", "20 a parameter", "2[4Φ + …) bytes",
        "diverges", "n", "34sbh + 5abs²", "4 ranks, all chunks", "4/3 at most", "1 when balanced"})
    EXPECT_FALSE(parse_figure(text)) << text;
}

TEST(Figure, MatchesWithinPrintedDigitsOrTolerance) {
  const auto same = [](const char* printed, const char* ours, double tolerance = 0) {
    return figures_match(*parse_figure(printed), *parse_figure(ours), tolerance);
  };
  EXPECT_TRUE(same("175B", "174,604,259,328"));
  EXPECT_TRUE(same("400 Gb/s", "50 GB/s"));
  EXPECT_TRUE(same("0.618", "0.618034"));
  EXPECT_FALSE(same("0.44", "0.4347"));
  EXPECT_TRUE(same("0.44", "0.4347", 0.01));
  EXPECT_FALSE(same("3.5 GB", "14 GB"));
  EXPECT_FALSE(same("93.99 %", "0.94"));  // a percentage is not equal to a plain number
}

}  // namespace
}  // namespace esp::app
