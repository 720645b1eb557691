#include "esp/parallel/pp/schedule_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "esp/base/error.h"

namespace esp::parallel {
namespace {

using testing::HasSubstr;

constexpr const char* kTwoStages =
    "# 1F1B for two stages\n"
    "espalier pipeline 1\n"
    "stages 2\n"
    "micro_batches 3   # of any size\n"
    "\n"
    "stage 1: F0 B0 F1 B1 F2 B2\r\n"
    "stage 0: F0 F1 B0\n"
    "stage 0: F2 B1 B2";

std::string fault_of(const std::string& text) {
  try {
    parse_schedule_text(text, "own.pipeline");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::string with(const std::string& line) {
  return "espalier pipeline 1\nstages 1\nmicro_batches 2\n" + line;
}

TEST(PipelineScheduleText, AcceptsCommentsAndContinuationLines) {
  PipelineSchedule expected = make_schedule("1f1b", {2, 1, 3});
  expected.name = "own.pipeline";
  EXPECT_EQ(parse_schedule_text(kTwoStages, "own.pipeline"), expected);
}

TEST(PipelineScheduleText, RoundTrips) {
  for (const ScheduleRow& row : schedules()) {
    const PipelineSchedule schedule = make_schedule(row.name, {3, row.chunked ? 2 : 1, 6});
    EXPECT_EQ(parse_schedule_text(write_schedule_text(schedule), row.name), schedule) << row.name;
  }
}

TEST(PipelineScheduleText, ErrorNamesTheLine) {
  EXPECT_THAT(fault_of(""), HasSubstr("own.pipeline, line 0: a schedule must begin with"));
  EXPECT_THAT(fault_of("\nstages 2"), HasSubstr("line 2: a schedule must begin with \"espalier pipeline 1\""));
  EXPECT_THAT(fault_of("espalier pipeline 2"), HasSubstr("got version 2; expected 1"));
  EXPECT_THAT(fault_of("espalier pipeline 1 now"), HasSubstr("unexpected word \"now\""));
  EXPECT_THAT(fault_of(with("stages 2")), HasSubstr("line 4: stages is given twice"));
  EXPECT_THAT(fault_of("espalier pipeline 1\nstages 99999"),
              HasSubstr("stages: got \"99999\"; expected an integer from 1"));
  EXPECT_THAT(fault_of("espalier pipeline 1\nstage 0: F0"), HasSubstr("must be given before a stage"));
  EXPECT_THAT(fault_of(with("stage 1: F0")), HasSubstr("the stage: got \"1\"; expected an integer from 0 to 0"));
  EXPECT_THAT(fault_of(with("stage 0 F0")), HasSubstr("must begin with its number, as in \"stage 0:\""));
  EXPECT_THAT(fault_of(with("stage 0: F0 X1")), HasSubstr("got \"X1\"; expected an action"));
  EXPECT_THAT(fault_of(with("stage 0: F")), HasSubstr("the micro-batch of \"F\": got \"\""));
  EXPECT_THAT(fault_of(with("stage 0: F2")), HasSubstr("expected an integer from 0 to 1"));
  EXPECT_THAT(fault_of(with("stage 0: F0.1")), HasSubstr("the chunk of \"F0.1\""));
  EXPECT_THAT(fault_of(with("chunks 2\nstage 0: F0")), HasSubstr("expected one of 2 chunks, as in F0.0"));
  EXPECT_THAT(fault_of(with("colour 3")), HasSubstr("got \"colour\"; expected stages"));
  EXPECT_THAT(fault_of(with("")), HasSubstr("no stage is listed"));
  EXPECT_THAT(fault_of("espalier pipeline 1\nstages 1024\nmicro_batches 65536\nstage 0: F0"), HasSubstr("more than"));
}

TEST(PipelineScheduleText, RejectsInvalidSchedule) {
  EXPECT_THROW(parse_schedule_text(with("stage 0: F0 B0 F1"), "own"), UsageError);
  EXPECT_THAT(fault_of(with("stage 0: F0 B0 F1")), HasSubstr("stage 0: B1 is missing"));
}

TEST(PipelineScheduleText, RejectsScheduleOfAnotherShape) {
  const PipelineSchedule schedule = parse_schedule_text(kTwoStages, "own.pipeline");
  EXPECT_NO_THROW(check_fits(schedule, {2, 1, 3}));
  EXPECT_THROW(check_fits(schedule, {2, 1, 4}), UsageError);
  EXPECT_TRUE(is_schedule_file_name("mine.pipeline"));
  EXPECT_FALSE(is_schedule_file_name("1f1b"));
}

}  // namespace
}  // namespace esp::parallel
