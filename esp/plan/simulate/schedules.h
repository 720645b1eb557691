// Pipeline schedules of the simulation: those that the trainer runs (esp/parallel/pp), and published ones that assign
// pieces to stages differently. All are lists of actions in the trainer's format.
//
//   zb-2p               twice the warm-up of ZB-H1, so that weight gradients fill the whole bubble (Qi et al. 2023)
//   zb-v                two chunks, on the way down and up a V: the memory of 1F1B and no bubble (Qi et al. 2024)
//   v-half, v-min       the same V in repeating blocks, with a half and a third of the activations (Qi et al. 2024)
//   dualpipe            two pipelines in opposite directions (DeepSeek-V3, 2024)
#pragma once

#include <optional>

#include "esp/parallel/pp/schedule.h"
#include "esp/plan/policy.h"

namespace esp::plan {

// Which piece of the model chunk c of stage k holds. P: number of stages.
enum class PiecePlacement : uint8_t {
  cyclic,  // piece c·P + k
  folded,  // chunk 0: piece k; chunk 1: piece 2P − 1 − k
  // Chunk 0: piece k. Chunk 1: piece P − 1 − k of a second replica of the model. Each replica processes half of the
  // micro-batches.
  bidirectional,
};

struct StepSchedule {
  // for bidirectional, shape.micro_batches is the number of the direction that has more
  parallel::PipelineSchedule schedule;
  PiecePlacement placement = PiecePlacement::cyclic;
  // Whether all stages wait for each other at the end of a step. Zero-bubble schedules check the gradient norm later,
  // so their stages do not wait. The time of a step is then the time from begin to end of its slowest stage.
  bool synchronised = true;
};

// The schedule of a policy. UsageError for an unknown schedule or a number of stages that it does not support.
StepSchedule step_schedule(const Policy& policy);

int piece_at(PiecePlacement placement, const parallel::ScheduleShape& shape, int stage, int chunk);
// The stage and chunk that need the result of an action. nullopt for the last action of a micro-batch.
std::optional<parallel::StageChunk> consumer_of(PiecePlacement placement, const parallel::ScheduleShape& shape,
                                                int stage, const parallel::PipelineAction& action);

}  // namespace esp::plan
