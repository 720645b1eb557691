// When a stage's messages are taken, in a pipeline whose pieces take as long as their multiplications: a receiver is
// ready one action before the one that needs it. A slower neighbour leaves messages waiting, and their memory.
#pragma once

#include "esp/parallel/pp/simulate.h"
#include "esp/plan/policy.h"
#include "esp/plan/shape.h"

namespace esp::plan {

class Departures {
 public:
  Departures(const Shape& shape, const Policy& policy, const parallel::ScheduleShape& pipe, int stage);

  double begun(const parallel::Action& action) const;  // sent when the action is over
  double taken(const parallel::Action& action) const;

 private:
  size_t index_of(int stage, const parallel::Action& action) const;

  const parallel::Schedule schedule_;
  const int stage_;
  parallel::Timeline timeline_;
};

}  // namespace esp::plan
