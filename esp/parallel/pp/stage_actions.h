// What one stage does, schedule by schedule: the functions behind the table of schedules.cpp. Each runs backwards in
// ascending micro-batch order, so that gradients add up in the order of one process that takes the micro-batches one
// by one.
#pragma once

#include <vector>

#include "esp/parallel/pp/schedule.h"

namespace esp::parallel {

inline Action forward_of(int micro_batch, int chunk = 0) {
  return {ActionKind::forward, chunk, micro_batch};
}
inline Action backward_of(int micro_batch, int chunk = 0) {
  return {ActionKind::backward, chunk, micro_batch};
}
inline Action weights_of(int micro_batch, int chunk = 0) {
  return {ActionKind::weights, chunk, micro_batch};
}

std::vector<Action> none_actions(const ScheduleShape& shape, int stage);
std::vector<Action> gpipe_actions(const ScheduleShape& shape, int stage);
std::vector<Action> one_f_one_b_actions(const ScheduleShape& shape, int stage);
std::vector<Action> interleaved_actions(const ScheduleShape& shape, int stage);
std::vector<Action> zb_h1_actions(const ScheduleShape& shape, int stage);

}  // namespace esp::parallel
