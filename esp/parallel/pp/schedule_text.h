// Pipeline schedules that users bring, as text: one line per stage, one word per action.
//
//   # 1F1B for two stages
//   espalier pipeline 1
//   stages 2
//   micro_batches 3
//   chunks 1                     may be left out
//   stage 0: F0 F1 B0 F2 B1 B2
//   stage 1: F0 B0 F1 B1 F2 B2
//
// A word is F, B or W and the micro-batch; with several chunks a stage also ".chunk", as in F3.1. Where W's occur B
// makes the input gradients only. A stage's line may be followed by more of the same stage, which go on with it. '#'
// begins a comment. A run file names such a file in parallel.schedule, by its suffix.
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
inline constexpr size_t kMaxScheduleActions = size_t{1} << 20;  // of all stages

bool names_schedule_file(std::string_view schedule);

// `what` names the text in messages and becomes the schedule's name. IoError with the line for text that is no
// schedule, UsageError for a schedule that cannot be run (validate.h).
Schedule parse_schedule_text(std::string_view text, std::string_view what);
std::string write_schedule_text(const Schedule& schedule);

// A user's schedule in a run of this shape: UsageError says how they differ.
void check_fits(const Schedule& schedule, const ScheduleShape& shape);

}  // namespace esp::parallel
