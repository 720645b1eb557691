#include "esp/data/records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "esp/base/error.h"
#include "esp/base/rng.h"

namespace esp::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string io_error(auto call) {
  try {
    call();
  } catch (const IoError& error) {
    return error.what();
  }
  return "no IoError";
}

std::unique_ptr<RecordReader> reader(InputKind kind, std::string_view bytes, const RecordPosition& start = {},
                                     size_t max_bytes = 1 << 20) {
  return make_record_reader(
      kind, [bytes] { return make_byte_stream(bytes, Compression::none, "x"); }, "x", {"text", "label"}, max_bytes,
      start);
}

std::vector<std::string> texts(InputKind kind, std::string_view bytes, const RecordPosition& start = {}) {
  std::vector<std::string> all;
  for (auto records = reader(kind, bytes, start); records->next();) all.push_back(records->text(0));
  return all;
}

std::string error_of(InputKind kind, std::string_view bytes) {
  return io_error([&] { texts(kind, bytes); });
}

// Checks that reading resumed after any record gives the same remaining records.
void expect_resumes(InputKind kind, std::string_view bytes) {
  const std::vector<std::string> all = texts(kind, bytes);
  std::vector<RecordPosition> places;
  for (auto records = reader(kind, bytes); records->next();) places.push_back(records->after());
  ASSERT_EQ(places.size(), all.size());
  for (size_t stop = 0; stop < places.size(); ++stop)
    EXPECT_EQ(texts(kind, bytes, places[stop]),
              std::vector<std::string>(all.begin() + static_cast<long>(stop) + 1, all.end()));
}

TEST(JsonArray, ReadsElementsAsRecords) {
  const std::string_view bytes =
      "\xEF\xBB\xBF [\n {\"text\": \"a ] } \\\" \\\\\", \"more\": [{\"text\": 1}]} "
      ",{\"text\":\"b\"},\n{\"text\":\"\"}\n]\n";
  EXPECT_THAT(texts(InputKind::json, bytes), ElementsAre("a ] } \" \\", "b", ""));
  expect_resumes(InputKind::json, bytes);
  EXPECT_THAT(texts(InputKind::json, " [ ] "), ElementsAre());
  EXPECT_THAT(texts(InputKind::json, ""), ElementsAre());
}

TEST(JsonArray, ErrorNamesPositionOfInvalidText) {
  EXPECT_THAT(error_of(InputKind::json, "{}"), HasSubstr("x: got \"{\"; expected an array of objects"));
  EXPECT_THAT(error_of(InputKind::json, "[1]"), HasSubstr("x, record 1: got \"1\"; expected an object"));
  EXPECT_THAT(error_of(InputKind::json, "[\"a\"]"), HasSubstr("x, record 1: got a string; expected an object"));
  EXPECT_THAT(error_of(InputKind::json, "[{\"text\": \"a\"} {"),
              HasSubstr("after record 1: got \"{\"; expected , or ]"));
  EXPECT_THAT(error_of(InputKind::json, "[{\"text\": \"a\"},"), HasSubstr("end of the file; expected an object"));
  EXPECT_THAT(error_of(InputKind::json, "[{\"text\": \"a"), HasSubstr("x, record 1: got the end of the file"));
  EXPECT_THAT(error_of(InputKind::json, "[{\"text\": \"a\"}] x"), HasSubstr("got \"x\" after the array"));
  EXPECT_THAT(error_of(InputKind::json, "[{\"text\": }]"), HasSubstr("x, record 1: invalid JSON at column"));
  EXPECT_THAT(error_of(InputKind::json, "[{\"tex\": \"a\"}]"),
              HasSubstr("x, record 1 has no \"text\"; its keys are: tex"));
}

TEST(Csv, ReadsQuotedFields) {
  const std::string_view bytes =
      "\xEF\xBB\xBFid,text,label\r\n1,plain,0\n2,\"a, \"\"b\"\"\nc\r\n\",word\r\n\r\n3,5\" disk,\r4,,1\n5,\"\",true";
  EXPECT_THAT(texts(InputKind::csv, bytes), ElementsAre("plain", "a, \"b\"\nc\r\n", "5\" disk", "", ""));
  expect_resumes(InputKind::csv, bytes);
  auto records = reader(InputKind::csv, bytes);
  std::vector<JsonField> labels;
  std::vector<std::string> places;
  while (records->next()) {
    labels.push_back(records->field(1));
    places.push_back(records->location());
  }
  EXPECT_EQ(std::get<int64_t>(labels[0]), 0);
  EXPECT_EQ(std::get<std::string>(labels[1]), "word");
  EXPECT_TRUE(std::holds_alternative<std::monostate>(labels[2]));
  EXPECT_EQ(std::get<std::string>(labels[4]), "true");
  EXPECT_THAT(places, ElementsAre("x, line 2", "x, line 3", "x, line 7", "x, line 8", "x, line 9"));
}

TEST(Csv, SplitsTsvAtTabs) {
  EXPECT_THAT(texts(InputKind::tsv, "text\tlabel\na, b\t1\n\"c\td\"\t2\n"), ElementsAre("a, b", "c\td"));
  EXPECT_THAT(texts(InputKind::csv, ""), ElementsAre());
  EXPECT_THAT(texts(InputKind::csv, "text\n"), ElementsAre());
}

TEST(Csv, ErrorNamesLineOfInvalidRecord) {
  EXPECT_THAT(error_of(InputKind::csv, "text,b\n1,2\n1,2,3\n"), HasSubstr("x, line 3: got 3 fields; expected 2"));
  EXPECT_THAT(error_of(InputKind::csv, "text\n\"a\" b\n"), HasSubstr("x, line 2: got \" \" after the closing quote"));
  EXPECT_THAT(error_of(InputKind::csv, "text\n\"a\n"), HasSubstr("x, line 2: got the end of the file within a quoted"));
  EXPECT_THAT(error_of(InputKind::csv, "a;text\n1;2\n"), HasSubstr("has no column \"text\"; its columns are: a;text"));
  EXPECT_THAT(error_of(InputKind::csv, "text,text\n1,2\n"), HasSubstr("has the column \"text\" twice"));
  EXPECT_THAT(error_of(InputKind::csv, "text\n\xE9t\xE9\n"), HasSubstr("x, line 2: field 1 is not UTF-8"));
  auto records = reader(InputKind::csv, "text\n\"" + std::string(500, 'x'), {}, 100);
  EXPECT_THAT(io_error([&] { records->next(); }), HasSubstr("a row of more than 100 bytes"));
}

TEST(Csv, ErrorNamesDelimiterFoundInFile) {
  EXPECT_THAT(error_of(InputKind::csv, "id;text\n1;a, b\n"),
              AllOf(HasSubstr("Got a table delimited by \";\"; expected \",\""), HasSubstr("delimiter=';'")));
  EXPECT_THAT(error_of(InputKind::csv, "\"id\";\"text\"\n1;2\n"), HasSubstr("delimited by \";\""));
  EXPECT_THAT(error_of(InputKind::csv, "id|text\n1|2\n"), HasSubstr("delimited by \"|\""));
  EXPECT_THAT(error_of(InputKind::csv, "id\ttext\n1\t2\n"),
              AllOf(HasSubstr("delimited by tabs"), HasSubstr("Rename it to .tsv")));
  EXPECT_THAT(error_of(InputKind::tsv, "id,text\n1,2\n"),
              AllOf(HasSubstr("delimited by \",\"; expected tabs"), HasSubstr("Rename it to .csv")));
  EXPECT_THAT(texts(InputKind::csv, "text\na;b\n"), ElementsAre("a;b"));
}

TEST(Csv, ReadsRecordLongerThanBuffer) {
  std::string bytes = "text,label\n";
  std::vector<std::string> expected;
  for (uint64_t i = 0; i < 40; ++i) {
    expected.push_back(std::string(random_bits(3, 3, i) % 60'000, 'x') + ",\"\n");
    std::string quoted = expected.back();
    quoted.replace(quoted.size() - 2, 1, "\"\"");
    bytes += "\"" + quoted + "\",1\r\n";
  }
  EXPECT_EQ(texts(InputKind::csv, bytes), expected);
  expect_resumes(InputKind::csv, bytes);
  std::string array = "[";
  for (const std::string& text : expected)
    array += (array.size() > 1 ? "," : "") + std::string("{\"text\":\"") + text.substr(0, text.size() - 2) + "\"}";
  EXPECT_EQ(texts(InputKind::json, array + "]").size(), expected.size());
  expect_resumes(InputKind::json, array + "]");
}

}  // namespace
}  // namespace esp::data
