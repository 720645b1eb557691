#include "esp/parallel/pp/simulate.h"

#include <algorithm>

#include "esp/base/check.h"
#include "esp/parallel/pp/steps.h"

namespace esp::parallel {
namespace {

class Simulation {
 public:
  Simulation(const PipelineSchedule& schedule, const PipelineCosts& costs)
      : schedule_(schedule),
        costs_(costs),
        forward_free_(schedule.stages.size(), 0),
        backward_free_(schedule.stages.size(), 0) {
    const auto entries = static_cast<size_t>(schedule.shape.virtual_stages() * schedule.shape.micro_batches);
    forward_arrival_.assign(entries, kNever);
    backward_arrival_.assign(entries, kNever);
    timeline_.stages.resize(schedule.stages.size());
  }

  Timeline run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int stage = 0; stage < schedule_.shape.stages; ++stage)
        while (advance(stage)) moved = true;
    }
    for (int stage = 0; stage < schedule_.shape.stages; ++stage) {
      StageTimeline& row = timeline_.stages[static_cast<size_t>(stage)];
      ESP_CHECK(row.actions.size() == schedule_.stages[static_cast<size_t>(stage)].size(),
                "deadlock: stage {} waits forever; call validate before simulate", stage);
      row.idle = timeline_.makespan - row.busy;
      row.peak_live = peak_live(schedule_, stage);
    }
    return std::move(timeline_);
  }

 private:
  static constexpr double kNever = -1;

  size_t virtual_stage(const StageChunk& at_chunk) const {
    return static_cast<size_t>(at_chunk.chunk * schedule_.shape.stages + at_chunk.stage);
  }
  // Arrival time of the input that the action needs from another stage; written by the sender.
  double& arrival(const StageChunk& at, const PipelineAction& action) {
    auto& table = action.kind == ActionKind::forward ? forward_arrival_ : backward_arrival_;
    return table[virtual_stage(at) * static_cast<size_t>(schedule_.shape.micro_batches) +
                 static_cast<size_t>(action.micro_batch)];
  }

  double time_of(const StageChunk& at, ActionKind kind) const {
    const StageTimes& times = costs_.virtual_stages[virtual_stage(at)];
    if (kind == ActionKind::forward) return times.forward;
    if (kind == ActionKind::weights) return times.weights;
    return schedule_.backward == Backward::split ? times.backward : times.backward + times.weights;
  }

  // Time at which a message is delivered. Edge k is from stage k to the next and carries one message at a time per
  // direction.
  double delivered(int from, const StageChunk& to, ActionKind kind, double ready) {
    if (costs_.transfers.empty() || to.stage == from) return ready;
    const auto edge = static_cast<size_t>(edge_of(kind, from, to.stage));
    double& free = kind == ActionKind::forward ? forward_free_[edge] : backward_free_[edge];
    return free = std::max(free, ready) + costs_.transfers[edge];
  }

  bool advance(int stage) {
    StageTimeline& row = timeline_.stages[static_cast<size_t>(stage)];
    const std::vector<PipelineAction>& actions = schedule_.stages[static_cast<size_t>(stage)];
    if (row.actions.size() == actions.size()) return false;
    const PipelineAction& action = actions[row.actions.size()];
    const StageChunk here{stage, action.chunk};
    double begin = row.actions.empty() ? 0 : row.actions.back().end;
    if (source_of(schedule_.shape, stage, action)) {
      const double there = arrival(here, action);
      if (there == kNever) return false;
      begin = std::max(begin, there);
    }
    const double end = begin + time_of(here, action.kind);
    row.actions.push_back({action, begin, end});
    row.busy += end - begin;
    timeline_.makespan = std::max(timeline_.makespan, end);
    if (const auto to = destination_of(schedule_.shape, stage, action))
      arrival(*to, action) = delivered(stage, *to, action.kind, end);
    return true;
  }

  const PipelineSchedule& schedule_;
  const PipelineCosts& costs_;
  std::vector<double> forward_free_, backward_free_;  // indexed by edge
  std::vector<double> forward_arrival_, backward_arrival_;
  Timeline timeline_;
};

}  // namespace

PipelineCosts equal_costs(const ScheduleShape& shape, const StageTimes& stage, double transfer) {
  const double v = shape.chunks;
  PipelineCosts costs;
  costs.virtual_stages.assign(static_cast<size_t>(shape.virtual_stages()),
                              {stage.forward / v, stage.backward / v, stage.weights / v});
  if (transfer > 0) costs.transfers.assign(static_cast<size_t>(shape.stages), transfer);
  return costs;
}

double Timeline::bubble_of_ideal() const {
  double idle = 0, busy = 0;
  for (const StageTimeline& stage : stages) idle += stage.idle, busy += stage.busy;
  return busy > 0 ? idle / busy : 0;
}

double Timeline::bubble_of_total() const {
  double idle = 0;
  for (const StageTimeline& stage : stages) idle += stage.idle;
  return makespan > 0 ? idle / (makespan * static_cast<double>(stages.size())) : 0;
}

Timeline simulate(const PipelineSchedule& schedule, const PipelineCosts& costs) {
  ESP_CHECK(costs.virtual_stages.size() == static_cast<size_t>(schedule.shape.virtual_stages()),
            "simulate: got the costs of {} virtual stages; expected {}", costs.virtual_stages.size(),
            schedule.shape.virtual_stages());
  ESP_CHECK(costs.transfers.empty() || costs.transfers.size() == schedule.stages.size());
  return Simulation(schedule, costs).run();
}

double exposed_transfer(const PipelineSchedule& schedule, const PipelineCosts& costs) {
  return simulate(schedule, costs).makespan - simulate(schedule, {costs.virtual_stages, {}}).makespan;
}

}  // namespace esp::parallel
