// Times at which a stage sends and receives its pipeline messages. They come from a simulation in which each piece
// takes the time of its GEMMs. A stage posts a receive one action before the action that needs the message; until then
// the sender buffers the message.
#pragma once

#include "esp/parallel/pp/simulate.h"
#include "esp/plan/policy.h"
#include "esp/plan/shape.h"

namespace esp::plan {

class MessageTimes {
 public:
  MessageTimes(const ModelShape& shape, const Policy& policy, const parallel::ScheduleShape& pipe, int stage);

  double sent_s(const parallel::PipelineAction& action) const;  // time when the action ends
  double received_s(const parallel::PipelineAction& action) const;

 private:
  size_t index_of(int stage, const parallel::PipelineAction& action) const;

  const parallel::PipelineSchedule schedule_;
  const int stage_;
  parallel::Timeline timeline_;
};

}  // namespace esp::plan
