#include "apps/espalier/lab_findings.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace esp::app {
namespace {

TEST(Findings, AllHoldWhenExactFiguresAreEqual) {
  Findings findings;
  findings.show("time", "", "3 ms", "4 ms");
  findings.exact("bytes", "2S", 4096, 4096, "B");
  findings.within("noise", "", 1, 1.04, 0.05);
  findings.same("live", "", "4 3 2 1", "4 3 2 1");
  EXPECT_TRUE(findings.all_hold());
  EXPECT_EQ(findings.json()[1]["measured"], "4096 B");
  EXPECT_EQ(findings.json()[0]["held"], "shown");
}

TEST(Findings, DoNotHoldWhenOneFigureIsWrong) {
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

TEST(Findings, MarkDifferencesFromLecture) {
  Findings findings;
  findings.show("printed digits", "175B", "174,604,259,328", "");
  Finding& other = findings.show("other", "3.5 GB", "14 GB", "");
  EXPECT_EQ(other.mark(), Mark::differs);
  other.note = "the slide counts 4 bytes per parameter";
  EXPECT_EQ(other.mark(), Mark::differs);  // a note alone changes no mark
  other.convention = "3.6 GB";
  EXPECT_EQ(other.mark(), Mark::differs);  // the convention's figure differs from the lecture's
  other.convention = "3.5 GB";
  EXPECT_EQ(other.mark(), Mark::convention);
  // The asserted figures are equal to each other, but not to the lecture's.
  EXPECT_EQ(findings.exact("asserted", "8 units", 10, 10, "units").mark(), Mark::differs);
  EXPECT_EQ(findings.exact("asserted", "8 units", 10, 11, "units").mark(), Mark::wrong);
  EXPECT_EQ(findings.within("noise", "1", 1.04, 1.04, 0.05).mark(), Mark::agrees);
  EXPECT_EQ(findings.show("other quantity", "93.99 %", "", "1.0e-03").mark(), Mark::differs);
  EXPECT_EQ(findings.show("formula", "2(n−1)α", "3 ms", "4 ms").mark(), Mark::none);
  EXPECT_EQ(findings.all()[0].mark(), Mark::agrees);
  EXPECT_NE(findings.text().find("✓ convention  the slide counts 4 bytes per parameter"), std::string::npos);
  EXPECT_NE(findings.text().find("✓ ± 5 %"), std::string::npos);
}

TEST(Findings, FormatLargeNumbersWithThousandsSeparators) {
  Findings findings;
  findings.exact("parameters", "175B", 174604259328.0, 174604259328.0);
  EXPECT_EQ(findings.all()[0].measured, "174,604,259,328");
}

}  // namespace
}  // namespace esp::app
