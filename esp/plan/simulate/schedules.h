// The pipeline schedules a step is simulated with: those the trainer runs (esp/parallel/pp), and those of others, whose
// pieces do not go round the stages. Lists of actions all, in the trainer's own words.
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

// Which piece of the model a stage's chunk is.
enum class Placement : uint8_t {
  round,   // chunk c of stage k is piece c·P + k
  folded,  // the second chunk runs back: piece 2P − 1 − k
  both,    // chunk 0 is piece k, chunk 1 piece P − 1 − k of a second copy; each takes half of the micro-batches
};

struct StepSchedule {
  parallel::Schedule schedule;  // with `both`, micro_batches are those of the direction that has more
  Placement placement = Placement::round;
  // Whether stages wait for each other between steps. Zero-bubble schedules put off the check of the norm, so that a
  // step takes what its slowest stage takes from its own begin to its own end.
  bool together = true;
};

// UsageError: a schedule nobody has written down, or a shape it does not take.
StepSchedule step_schedule(const Policy& policy);

int piece_at(Placement placement, const parallel::ScheduleShape& shape, int stage, int chunk);
// Where an action's result is needed: another stage, or another chunk of the same one.
std::optional<parallel::Place> goes_to(Placement placement, const parallel::ScheduleShape& shape, int stage,
                                       const parallel::Action& action);

}  // namespace esp::plan
