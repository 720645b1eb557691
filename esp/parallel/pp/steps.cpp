#include "esp/parallel/pp/steps.h"

#include <algorithm>

namespace esp::parallel {

StagePlan plan_of(const PipelineSchedule& schedule, int stage) {
  StagePlan plan{schedule.shape, stage, schedule.backward, {}};
  const std::vector<PipelineAction>& actions = schedule.stages[static_cast<size_t>(stage)];
  const auto add = [&](StepKind kind, const PipelineAction& action, const std::optional<StageChunk>& other) {
    if (other && other->stage != stage) plan.steps.push_back({kind, action, other->stage});
  };
  const auto receive = [&](size_t i) {
    if (i < actions.size()) add(StepKind::receive, actions[i], source_of(schedule.shape, stage, actions[i]));
  };
  receive(0);
  for (size_t i = 0; i < actions.size(); ++i) {
    receive(i + 1);
    plan.steps.push_back({StepKind::compute, actions[i], -1});
    add(StepKind::send, actions[i], destination_of(schedule.shape, stage, actions[i]));
  }
  return plan;
}

int peak_live(const PipelineSchedule& schedule, int stage) {
  const ActionKind last = schedule.backward == Backward::split ? ActionKind::weights : ActionKind::backward;
  int live = 0, peak = 0;
  for (const PipelineAction& action : schedule.stages[static_cast<size_t>(stage)]) {
    if (action.kind == ActionKind::forward) ++live;
    peak = std::max(peak, live);
    if (action.kind == last || schedule.backward == Backward::none) --live;
  }
  return peak;
}

}  // namespace esp::parallel
