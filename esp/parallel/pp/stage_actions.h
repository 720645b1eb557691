// Functions that list the actions of one stage, one per schedule of the table in schedules.cpp. Backwards run in
// ascending micro-batch order, so gradients add up in the same order as in a single process.
#pragma once

#include <vector>

#include "esp/parallel/pp/schedule.h"

namespace esp::parallel {

inline PipelineAction forward_of(int micro_batch, int chunk = 0) {
  return {ActionKind::forward, chunk, micro_batch};
}
inline PipelineAction backward_of(int micro_batch, int chunk = 0) {
  return {ActionKind::backward, chunk, micro_batch};
}
inline PipelineAction weights_of(int micro_batch, int chunk = 0) {
  return {ActionKind::weights, chunk, micro_batch};
}

std::vector<PipelineAction> none_actions(const ScheduleShape& shape, int stage);
std::vector<PipelineAction> gpipe_actions(const ScheduleShape& shape, int stage);
std::vector<PipelineAction> one_f_one_b_actions(const ScheduleShape& shape, int stage);
std::vector<PipelineAction> interleaved_actions(const ScheduleShape& shape, int stage);
std::vector<PipelineAction> zb_h1_actions(const ScheduleShape& shape, int stage);

}  // namespace esp::parallel
