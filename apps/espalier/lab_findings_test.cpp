#include "apps/espalier/lab_findings.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace esp::app {
namespace {

TEST(Findings, HoldWhileEveryExactFigureIsRight) {
  Findings findings;
  findings.show("time", "", "3 ms", "4 ms");
  findings.exact("bytes", "2S", 4096, 4096, "B");
  findings.within("noise", "", 1, 1.04, 0.05);
  findings.same("live", "", "4 3 2 1", "4 3 2 1");
  EXPECT_TRUE(findings.all_hold());
  EXPECT_EQ(findings.json()[1]["measured"], "4096 B");
  EXPECT_EQ(findings.json()[0]["held"], "shown");
}

TEST(Findings, OneWrongFigureIsEnough) {
  Findings bytes, noise, words;
  bytes.exact("bytes", "", 4096, 4097);
  noise.within("noise", "", 1, 1.06, 0.05);
  words.same("live", "", "4 3 2 1", "4 4 4 4");
  for (const Findings* one : {&bytes, &noise, &words}) {
    EXPECT_FALSE(one->all_hold());
    EXPECT_NE(one->text().find("WRONG"), std::string::npos);
    EXPECT_EQ(one->json()[0]["held"], "wrong");
  }
}

TEST(Findings, LargeNumbersAreWrittenInThousands) {
  Findings findings;
  findings.exact("parameters", "175B", 174604259328.0, 174604259328.0);
  EXPECT_EQ(findings.all()[0].measured, "174,604,259,328");
}

}  // namespace
}  // namespace esp::app
