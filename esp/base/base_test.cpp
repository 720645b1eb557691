#include <cmath>
#include <limits>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "esp/base/check.h"
#include "esp/base/dtype.h"
#include "esp/base/error.h"
#include "esp/base/format.h"
#include "esp/base/half.h"
#include "esp/base/json.h"
#include "esp/base/rng.h"
#include "esp/base/table.h"
#include "esp/base/toml_text.h"
#include "esp/base/work.h"

namespace esp {
namespace {

std::string message_of(auto&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Table, UnknownNameErrorListsNamesAndSuggestsNearest) {
  std::string text = message_of([] { parse_dtype("bf61"); });
  EXPECT_NE(text.find("did you mean \"bf16\""), std::string::npos) << text;
  EXPECT_NE(text.find("f64, f32"), std::string::npos) << text;
}

TEST(Check, FailureNamesLocationAndCondition) {
  std::string text = message_of([] { ESP_CHECK(1 == 2, "got {}", 7); });
  EXPECT_NE(text.find("esp/base/base_test.cpp"), std::string::npos) << text;
  EXPECT_NE(text.find("1 == 2: got 7"), std::string::npos) << text;
}

TEST(Half, RoundTripsEveryFloat16) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    float value = Float16::to_float(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(Float16::to_float(Float16::from_float(value))));
    } else {
      EXPECT_EQ(Float16::from_float(value), bits);
    }
  }
}

TEST(Half, RoundsToNearestEven) {
  EXPECT_EQ(Float16(2049.0f).bits, Float16(2048.0f).bits);
  EXPECT_EQ(Float16(2051.0f).bits, Float16(2052.0f).bits);
  EXPECT_EQ(Float16(65520.0f).bits, 0x7c00);  // rounds to infinity
  EXPECT_EQ(Float16(65519.0f).bits, 0x7bff);
  EXPECT_EQ(BFloat16(1.00390625f).bits, BFloat16(1.0f).bits);       // halfway between two values; the lower one is even
  EXPECT_EQ(BFloat16(1.01171875f).bits, BFloat16(1.015625f).bits);  // halfway between two values; the upper one is even
  EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(std::numeric_limits<float>::quiet_NaN()))));
}

TEST(Json, RejectsDuplicateKeysDeepNestingAndTrailingText) {
  EXPECT_NE(message_of([] { parse_json(R"({"a":1,"a":2})", "x"); }).find("twice"), std::string::npos);
  EXPECT_NE(message_of([] { parse_json(std::string(40, '['), "x"); }).find("deeper"), std::string::npos);
  EXPECT_NE(message_of([] { parse_json("{} {}", "x"); }).find("not JSON"), std::string::npos);
  EXPECT_EQ(parse_json(R"({"a":{"a":2}})", "x")["a"]["a"], 2);
  EXPECT_EQ(message_of([] { parse_json("{]", "x"); }).find("json.exception"), std::string::npos);
  EXPECT_EQ(message_of([] { parse_json(" \n", "x"); }), "x is empty; expected JSON");
}

TEST(Json, KeepsOrderAndTypes) {
  const char* text = R"({"z":[1,-2,3.5,true,null,"s",[],{}],"a":{"b":18446744073709551615}})";
  EXPECT_EQ(parse_json(text, "x").dump(), text);
  EXPECT_EQ(parse_json("7", "x"), 7);
}

// If the parser searched all keys linearly for every new key, this test would exceed its time limit by far.
TEST(Json, ReadsObjectWithManyKeys) {
  std::string text = "{";
  for (int i = 0; i < 400'000; ++i) text += (i > 0 ? ",\"k" : "\"k") + std::to_string(i) + "\":0";
  EXPECT_EQ(parse_json(text + "}", "x").size(), 400'000U);
  EXPECT_NE(message_of([&] { parse_json(text + ",\"k17\":0}", "x"); }).find("twice"), std::string::npos);
}

TEST(TomlText, ReportsLocationOfTooDeeplyNestedKeysAndBrackets) {
  std::string dotted = "a";
  for (int i = 0; i < 200'000; ++i) dotted += ".a";
  EXPECT_EQ(message_of([&] { check_toml_text("b = 1\n" + dotted + " = 1", "f"); }),
            "f:2:32: a key has more than 16 parts");
  EXPECT_EQ(message_of([&] { check_toml_text("[" + dotted + "]", "f"); }), "f:1:33: a key has more than 16 parts");
  EXPECT_NE(message_of([] { check_toml_text("a = " + std::string(200'000, '['), "f"); }).find("f:1:21: brackets"),
            std::string::npos);
  std::string tables = "a = ";
  for (int i = 0; i < 200'000; ++i) tables += "{a=";
  EXPECT_NE(message_of([&] { check_toml_text(tables, "f"); }).find("deeper than 16"), std::string::npos);
  EXPECT_EQ(message_of([] { check_toml_text("a = [1.5, 2.5,\n3.5]\n[b.c]\n\"....................\" = '[[[['", "f"); }),
            "nothing was thrown");
}

TEST(FormatBytes, PicksLargestUnitThatGivesAtLeastOne) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(300 << 10), "300.0 KiB");
  EXPECT_EQ(format_bytes(uint64_t{5} << 40), "5.00 TiB");
}

TEST(Rng, MatchesPublishedPhiloxVectors) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}),
            (std::array<uint32_t, 4>{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  EXPECT_EQ(philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (std::array<uint32_t, 4>{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
}

TEST(Work, WaitRethrowsErrorOfOperation) {
  Work work = Work::pending();
  EXPECT_FALSE(work.done());
  EXPECT_NE(message_of([&] { work.wait(Deadline::after_ms(1)); }).find("deadline"), std::string::npos);
  work.fail(std::make_exception_ptr(CommError(CommError::Kind::lost, 3, "rank 3 is gone")));
  EXPECT_TRUE(work.done());
  EXPECT_EQ(message_of([&] { work.wait(Deadline::after_ms(1)); }), "rank 3 is gone");
}

}  // namespace
}  // namespace esp
