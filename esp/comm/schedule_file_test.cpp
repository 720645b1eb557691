#include "esp/comm/schedule_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "esp/base/error.h"
#include "esp/comm/algo/table.h"
#include "esp/comm/replay.h"
#include "esp/comm/validate.h"

namespace esp::comm {
namespace {

using testing::HasSubstr;

// Two ranks that swap halves; the example in the header.
const char* const kTwoSwap = R"({
  "espalier_schedule": 1, "name": "two_swap", "op": "all_reduce", "size": 2, "split": [2], "rounds": 2,
  "ranks": [
    {"actions": [
      {"round": 0, "do": "send", "to": 1, "at": ["input", 1, 1]},
      {"round": 0, "do": "copy", "into": ["output", 0, 1], "from": ["input", 0, 1]},
      {"round": 0, "do": "receive_reduce", "from": 1, "at": ["output", 0, 1]},
      {"round": 1, "do": "send", "to": 1, "at": ["output", 0, 1]},
      {"round": 1, "do": "receive", "from": 1, "at": ["output", 1, 1]}]},
    {"scratch": [[1, 1]],
     "actions": [
      {"round": 0, "do": "send", "to": 0, "at": ["input", 0, 1]},
      {"round": 0, "do": "receive", "from": 0, "at": ["scratch", 0, 1, 1]},
      {"round": 0, "do": "reduce", "into": ["output", 1, 1], "of": [["input", 1, 1], ["scratch", 0, 1, 1]]},
      {"round": 1, "do": "send", "to": 0, "at": ["output", 1, 1]},
      {"round": 1, "do": "receive", "from": 0, "at": ["output", 0, 1]}]}
  ]})";

std::string changed(std::string text, std::string_view from, std::string_view to) {
  size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string refusal(const std::string& text) {
  try {
    parse_schedule(text, "schedule file x.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

CollectiveSpec spec_of(Op op, int size, size_t count) {
  CollectiveSpec spec;
  spec.op = op;
  spec.size = size;
  spec.count = count;
  return spec;
}

TEST(ScheduleFile, RunsForAnyCount) {
  ScheduleFile file = parse_schedule(kTwoSwap, "two");
  EXPECT_EQ(file.name, "two_swap");
  for (size_t count : {size_t{0}, size_t{1}, size_t{2}, size_t{3}, size_t{1001}}) {
    auto schedules = instantiate_validated(file, spec_of(Op::all_reduce, 2, count));
    EXPECT_EQ(schedules[1].scratch_count, count / 2);
  }
  EXPECT_THROW(instantiate(file, spec_of(Op::all_reduce, 3, 9)), UsageError);
  EXPECT_THROW(instantiate(file, spec_of(Op::all_gather, 2, 9)), UsageError);
}

TEST(ScheduleFile, RoundTrips) {
  ScheduleFile file = parse_schedule(kTwoSwap, "two");
  EXPECT_EQ(parse_schedule(write_schedule(file), "again"), file);
}

TEST(ScheduleFile, RejectsMalformedTextWithLocation) {
  EXPECT_THAT(refusal("{"), HasSubstr("x.json is not JSON"));
  EXPECT_THAT(refusal("[]"), HasSubstr("is not a JSON object"));
  EXPECT_THAT(refusal(changed(kTwoSwap, "\"espalier_schedule\": 1", "\"espalier_schedule\": 2")),
              HasSubstr("version 2"));
  EXPECT_THAT(refusal(changed(kTwoSwap, "\"rounds\"", "\"round\"")), HasSubstr("did you mean \"rounds\"?"));
  EXPECT_THAT(refusal(changed(kTwoSwap, "all_reduce", "all_redce")), HasSubstr("all_reduce"));
  EXPECT_THAT(refusal(changed(kTwoSwap, "all_reduce", "barrier")), HasSubstr("files do not support this collective"));
  EXPECT_THAT(refusal(changed(kTwoSwap, "\"size\": 2", "\"size\": 2000000")), HasSubstr("from 1 to 1024"));
  EXPECT_THAT(refusal(changed(kTwoSwap, "\"size\": 2", "\"size\": -1")), HasSubstr("from 1 to 1024"));
  EXPECT_THAT(refusal(changed(kTwoSwap, "\"size\": 2", "\"size\": 2.5")), HasSubstr("an integer from"));
  EXPECT_THAT(refusal(changed(kTwoSwap, "\"size\": 2", "\"size\": 18446744073709551615")),
              HasSubstr("an integer from"));
  EXPECT_THAT(refusal(changed(kTwoSwap, "[2]", "[60000, 60000]")), HasSubstr("more than 65536 units"));
  EXPECT_THAT(refusal(changed(kTwoSwap, "[2]", "[]")), HasSubstr("split"));
  EXPECT_THAT(refusal(changed(kTwoSwap, "\"size\": 2", "\"size\": 2, \"root\": 0")),
              HasSubstr("all_reduce has no root"));
  EXPECT_THAT(refusal(changed(kTwoSwap, "\"size\": 2", "\"size\": 3")),
              HasSubstr("has 2 entries in \"ranks\"; expected 3"));
  EXPECT_THAT(refusal(changed(kTwoSwap, "[\"input\", 1, 1]", "[\"input\", 1, 2]")),
              HasSubstr("rank 0, action 0, needs the number of units"));
  EXPECT_THAT(refusal(changed(kTwoSwap, "\"to\": 1", "\"to\": 2")), HasSubstr("from 0 to 1"));
  EXPECT_THAT(refusal(changed(kTwoSwap, "\"do\": \"send\"", "\"do\": \"snd\"")), HasSubstr("did you mean \"send\""));
  EXPECT_THAT(refusal(changed(kTwoSwap, "[\"scratch\", 0, 1, 1]", "[\"scratch\", 1, 1, 1]")), HasSubstr("the area"));
}

TEST(ScheduleFile, RejectsIncorrectSchedule) {
  std::string text = refusal(changed(kTwoSwap, "receive_reduce", "receive"));
  EXPECT_THAT(text, HasSubstr("x.json: this schedule is not a correct all_reduce"));
  EXPECT_THAT(text, HasSubstr("expected the sum over ranks 0,1"));
  EXPECT_THAT(refusal(changed(kTwoSwap, "[\"input\", 1, 1]", "[\"input\", 0, 1]")), HasSubstr("rank 1, action 2"));
}

TEST(ScheduleFile, RejectsScheduleThatIsCorrectOnlyForEvenCounts) {
  // The scratch area is sized for unit 0 but receives unit 1, which is shorter when the count is odd.
  std::string text = changed(kTwoSwap, "[[1, 1]]", "[[0, 1]]");
  text = changed(text, "\"at\": [\"scratch\", 0, 1, 1]", "\"at\": [\"scratch\", 0, 0, 1]");
  text = changed(text, "[\"scratch\", 0, 1, 1]]", "[\"scratch\", 0, 0, 1]]");
  EXPECT_THAT(refusal(text), HasSubstr("not a correct"));
}

// Exports every built-in algorithm that the format can express. The exported schedule must equal the built-in one.
TEST(ScheduleFile, ExportsBuiltInAlgorithms) {
  int exported = 0;
  for (const AlgorithmRow& row : algorithms())
    for (int size : {1, 2, 4, 6}) {
      CollectiveSpec spec = spec_of(row.op, size, 0);
      spec.segments = 3;
      if (row.applies && !row.applies(spec).empty()) continue;
      ScheduleFile file;
      try {
        file = export_schedule(row, spec);
      } catch (const UsageError& error) {
        bool packs = row.name == "bruck" || (row.op == Op::all_to_all && row.name == "hierarchical");
        EXPECT_TRUE(packs || row.op == Op::barrier || row.op == Op::all_to_all_v) << row.name << ": " << error.what();
        continue;
      }
      ++exported;
      EXPECT_EQ(parse_schedule(write_schedule(file), "exported"), file);
      spec.count = static_cast<size_t>(size) * 7 + (row.op == Op::all_to_all ? 0 : 2);
      auto specs = specs_for_all_ranks(spec);
      std::vector<Bytes> inputs;
      for (const CollectiveSpec& mine : specs) {
        Bytes input(sizes_of(mine).input * sizeof(float));
        for (size_t i = 0; i < input.size(); i += sizeof(float)) {
          float value = 1.0f / (1.0f + static_cast<float>(i) * 0.37f + static_cast<float>(mine.rank) * 11.3f);
          std::memcpy(input.data() + i, &value, sizeof value);
        }
        inputs.push_back(std::move(input));
      }
      auto from_file = replay(specs, instantiate_validated(file, spec), inputs, DType::f32, ReduceOp::sum);
      if (row.name == "mesh2d") continue;  // its two splits do not nest, so the file's pieces may differ by one element
      EXPECT_EQ(from_file, replay(specs, build_all(row, specs), inputs, DType::f32, ReduceOp::sum))
          << name_of(row.op) << " " << row.name << " size " << size;
    }
  EXPECT_GT(exported, 100);
}

}  // namespace
}  // namespace esp::comm
