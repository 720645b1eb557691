#include "esp/dash/json_text.h"

#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace esp::dash {
namespace {

using Fields = std::vector<std::pair<std::string, std::string>>;

std::pair<bool, Fields> fields(std::string_view text) {
  Fields all;
  const bool whole =
      for_each_field(text, [&](std::string_view key, std::string_view value) { all.emplace_back(key, value); });
  return {whole, all};
}

TEST(JsonFields, ReturnsFieldsOfObject) {
  const auto [whole, all] = fields(R"( {"a":1.5e3, "b" : "x,}\"y" ,"c":[1,{"d":"]"}],"e":null,"f":true} )");
  EXPECT_TRUE(whole);
  EXPECT_EQ(all,
            (Fields{{"a", "1.5e3"}, {"b", R"("x,}\"y")"}, {"c", R"([1,{"d":"]"}])"}, {"e", "null"}, {"f", "true"}}));
  EXPECT_TRUE(fields("{}").first);
}

TEST(JsonFields, RejectsDamagedObject) {
  for (const char* bad : {"", "[]", "1", "{", "{\"a\"", "{\"a\":", "{\"a\":1", "{\"a\":1,", "{\"a\":\"x}", "{a:1}",
                          "{\"a\":1}{", "{\"a\":1 2}", "{\"a\":,}", "{\"a\":{}", "null"})
    EXPECT_FALSE(fields(bad).first) << bad;
  EXPECT_FALSE(fields("{\"a\":" + std::string(100, '[') + std::string(100, ']') + "}").first);
}

TEST(QuoteJson, ProducesValidJsonWithoutMarkup) {
  for (const std::string& text : {std::string("plain"), std::string("a\"b\\c\n\t\x01"), std::string("</script><b>&"),
                                  std::string("über 例 🙂"), std::string("bad \xff\xc0\xaf end")}) {
    const std::string quote = quote_json(text);
    EXPECT_EQ(quote.find('<'), std::string::npos);
    const auto back = nlohmann::json::parse(quote).get<std::string>();
    if (is_utf8(text)) {
      EXPECT_EQ(back, text);
      EXPECT_EQ(parse_string(quote), text);
    } else {
      EXPECT_NE(back.find("\xef\xbf\xbd"), std::string::npos);
    }
  }
}

TEST(Utf8, RejectsOverlongFormsAndSurrogates) {
  for (const char* good : {"", "a", "é", "例", "🙂", "\xf4\x8f\xbf\xbf"}) EXPECT_TRUE(is_utf8(good)) << good;
  for (const char* bad : {"\x80", "\xc0\xaf", "\xc1\x81", "\xe0\x80\xaf", "\xed\xa0\x80", "\xf0\x80\x80\x80",
                          "\xf4\x90\x80\x80", "\xf8\x88\x80\x80\x80", "\xe4\xbe", "\xff"})
    EXPECT_FALSE(is_utf8(bad)) << bad;
}

TEST(ParseNumber, RejectsPartialNumbers) {
  EXPECT_EQ(parse_number("-1.25e2"), -125);
  EXPECT_EQ(parse_number("true"), 1);
  for (const char* bad : {"", "null", "1x", "nan", "inf", "1e999", "\"1\""}) EXPECT_FALSE(parse_number(bad)) << bad;
}

}  // namespace
}  // namespace esp::dash
