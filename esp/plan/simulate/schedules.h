// Pipeline schedules of the simulation: those the trainer runs (esp/parallel/pp), and published ones whose pieces are
// not cyclic over the stages. All are action lists in the trainer's format.
//
//   zb-2p               twice the warm-up of ZB-H1, so that weight gradients fill the whole bubble (Qi et al. 2023)
//   zb-v                two chunks on the way down and up a V (Qi et al. 2024), 1F1B's memory and no bubble
//   v-half, v-min       the same V in repeating blocks that hold a half and a third (Qi et al. 2024)
//   dualpipe            two pipelines in opposite directions (DeepSeek-V3, 2024)
#pragma once

#include <optional>

#include "esp/parallel/pp/schedule.h"
#include "esp/plan/policy.h"

namespace esp::plan {

// The piece of the model in a stage's chunk.
enum class PiecePlacement : uint8_t {
  round,   // chunk c of stage k is piece c·P + k
  folded,  // the second chunk runs back: piece 2P − 1 − k
  both,    // chunk 0 is piece k, chunk 1 piece P − 1 − k of a second replica; each takes half of the micro-batches
};

struct StepSchedule {
  parallel::PipelineSchedule schedule;  // with `both`, micro_batches are those of the direction that has more
  PiecePlacement placement = PiecePlacement::round;
  // Whether stages synchronise between steps. Zero-bubble schedules delay the check of the norm, so that a step takes
  // the time of its slowest stage, from its begin to its end.
  bool together = true;
};

// UsageError: an unknown schedule, or an unsupported shape.
StepSchedule step_schedule(const Policy& policy);

int piece_at(PiecePlacement placement, const parallel::ScheduleShape& shape, int stage, int chunk);
// The consumer of an action's result: another stage, or another chunk of the same one.
std::optional<parallel::StageChunk> goes_to(PiecePlacement placement, const parallel::ScheduleShape& shape, int stage,
                                            const parallel::PipelineAction& action);

}  // namespace esp::plan
