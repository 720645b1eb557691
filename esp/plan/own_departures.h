// Receive times of a stage's messages, in a pipeline whose pieces take as long as their GEMMs: a receive is posted one
// action before the one that needs it. A slower neighbour leaves messages queued in memory.
#pragma once

#include "esp/parallel/pp/simulate.h"
#include "esp/plan/policy.h"
#include "esp/plan/shape.h"

namespace esp::plan {

class Departures {
 public:
  Departures(const ModelShape& shape, const Policy& policy, const parallel::ScheduleShape& pipe, int stage);

  double begun(const parallel::PipelineAction& action) const;  // sent at the end of the action
  double taken(const parallel::PipelineAction& action) const;

 private:
  size_t index_of(int stage, const parallel::PipelineAction& action) const;

  const parallel::PipelineSchedule schedule_;
  const int stage_;
  parallel::Timeline timeline_;
};

}  // namespace esp::plan
