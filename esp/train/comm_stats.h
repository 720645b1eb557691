// What this rank has sent, as its communicators and its strategy count it. Between steps: calls under way are waited
// for before they are counted.
#pragma once

#include <cstdint>

#include "esp/base/json.h"
#include "esp/train/engine.h"

namespace esp::train {

// One row per group, operation and algorithm: `comm` of ranks/rank-K.json.
Json comm_rows(Engine& engine);
uint64_t bytes_sent(Engine& engine);

// Bytes that steps alone have sent: between `pause` and `resume` evaluation, checkpoints and reports are left out.
class StepTraffic {
 public:
  explicit StepTraffic(Engine& engine) : engine_(engine) { resume(); }
  void pause();  // does nothing while paused
  void resume();
  // Mean per step since the last call; for the caller to have paused.
  double take(int64_t step);
  // Mean per step of all steps of this process.
  double mean(int64_t step) const;

 private:
  Engine& engine_;
  bool paused_ = true;
  uint64_t begun_ = 0, total_ = 0, taken_ = 0;
  int64_t first_step_ = engine_.num_steps(), taken_step_ = engine_.num_steps();
};

}  // namespace esp::train
