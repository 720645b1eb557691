// Statistics of the data that this rank has sent, as counted by its communicators and its sync strategy. Call these
// functions between steps: they first complete pending calls.
#pragma once

#include <cstdint>

#include "esp/base/json.h"
#include "esp/train/engine.h"

namespace esp::train {

// The `comm` list of ranks/rank-K.json: one row per group, operation and algorithm.
Json comm_rows(Engine& engine);
uint64_t bytes_sent(Engine& engine);

// Counts the bytes that training steps send. Traffic between `pause` and `resume` (evaluation, checkpoints, reports) is
// not counted.
class StepTraffic {
 public:
  explicit StepTraffic(Engine& engine) : engine_(engine) { resume(); }
  void pause();  // no effect if already paused
  void resume();
  // Mean bytes per step since the last call of take. Call it while paused.
  double take(int64_t step);
  // Mean bytes per step over all steps of this process.
  double mean(int64_t step) const;

 private:
  Engine& engine_;
  bool paused_ = true;
  uint64_t begun_ = 0, total_ = 0, taken_ = 0;
  int64_t first_step_ = engine_.num_steps(), taken_step_ = engine_.num_steps();
};

}  // namespace esp::train
