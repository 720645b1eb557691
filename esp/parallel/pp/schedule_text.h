// User-supplied pipeline schedules as text: one line per stage, one word per action.
//
//   # 1F1B for two stages
//   espalier pipeline 1
//   stages 2
//   micro_batches 3
//   chunks 1                     optional
//   stage 0: F0 F1 B0 F2 B1 B2
//   stage 1: F0 B0 F1 B1 F2 B2
//
// A word is F, B or W and the micro-batch; with several chunks per stage also ".chunk", as in F3.1. If the schedule
// has Ws, B computes the input gradients only. Several lines of one stage are concatenated. '#' starts a comment. In a
// run file, parallel.schedule may be the path of a schedule file; its name ends with .pipeline.
//
// The text is untrusted: sizes are bounded, and the schedule is validated before it is returned.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "esp/parallel/pp/schedule.h"

namespace esp::parallel {

inline constexpr std::string_view kScheduleSuffix = ".pipeline";
inline constexpr size_t kMaxScheduleTextBytes = size_t{4} << 20;
inline constexpr int kMaxScheduleStages = 1024, kMaxScheduleChunks = 256, kMaxScheduleMicroBatches = 65536;
inline constexpr size_t kMaxScheduleActions = size_t{1} << 20;  // sum over all stages

bool is_schedule_file_name(std::string_view schedule);

// `what` names the text in messages and becomes the schedule's name. Throws IoError with the line if the text cannot be
// parsed, UsageError if the schedule is invalid (validate.h).
PipelineSchedule parse_schedule_text(std::string_view text, std::string_view what);
std::string write_schedule_text(const PipelineSchedule& schedule);

// Throws UsageError if the schedule has another shape than the training run.
void check_fits(const PipelineSchedule& schedule, const ScheduleShape& shape);

}  // namespace esp::parallel
