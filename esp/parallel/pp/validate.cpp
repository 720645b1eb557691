#include "esp/parallel/pp/validate.h"

#include <limits>
#include <utility>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/parallel/pp/steps.h"

namespace esp::parallel {
namespace {

constexpr int kNumKinds = 3;
constexpr int kAbsent = -1;

class Validator {
 public:
  explicit Validator(const PipelineSchedule& schedule) : schedule_(schedule), shape_(schedule.shape) {}

  void run() {
    check_shape();
    for (int stage = 0; stage < shape_.stages; ++stage) {
      check_actions(stage);
      check_order(stage);
    }
    for (int stage = 0; stage < shape_.stages; ++stage) plans_.push_back(plan_of(schedule_, stage));
    check_channels();
    check_progress(std::numeric_limits<int>::max());
    check_progress(1);
  }

 private:
  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw UsageError(
        fmt::format("pipeline schedule {}: {}", schedule_.name, fmt::format(format, std::forward<Args>(args)...)));
  }
  std::string name(const PipelineAction& action) const { return name_of(action, shape_.chunks); }
  std::string place(int stage, size_t at) const {
    return fmt::format("stage {}, action {} ({})", stage, at, name(schedule_.stages[static_cast<size_t>(stage)][at]));
  }
  bool has(ActionKind kind) const {
    if (kind == ActionKind::forward) return true;
    return kind == ActionKind::backward ? schedule_.backward != Backward::none : schedule_.backward == Backward::split;
  }

  void check_shape() const {
    if (shape_.stages < 1 || shape_.chunks < 1 || shape_.micro_batches < 1)
      fail("got {} stages, {} chunks per stage, {} micro-batches; expected at least 1 of each", shape_.stages,
           shape_.chunks, shape_.micro_batches);
    if (schedule_.stages.size() != static_cast<size_t>(shape_.stages))
      fail("got the actions of {} stages; expected {}", schedule_.stages.size(), shape_.stages);
  }

  // Index of an action by kind, chunk and micro-batch.
  size_t index(const PipelineAction& action) const {
    return (static_cast<size_t>(action.kind) * static_cast<size_t>(shape_.chunks) + static_cast<size_t>(action.chunk)) *
               static_cast<size_t>(shape_.micro_batches) +
           static_cast<size_t>(action.micro_batch);
  }

  void check_actions(int stage) {
    at_.assign(static_cast<size_t>(kNumKinds * shape_.chunks * shape_.micro_batches), kAbsent);
    const std::vector<PipelineAction>& actions = schedule_.stages[static_cast<size_t>(stage)];
    for (size_t i = 0; i < actions.size(); ++i) {
      const PipelineAction& action = actions[i];
      if (action.chunk < 0 || action.chunk >= shape_.chunks)
        fail("{}: got chunk {}; expected less than {}, the number of chunks per stage", place(stage, i), action.chunk,
             shape_.chunks);
      if (action.micro_batch < 0 || action.micro_batch >= shape_.micro_batches)
        fail("{}: got micro-batch {}; expected less than {}, the number of micro-batches", place(stage, i),
             action.micro_batch, shape_.micro_batches);
      if (!has(action.kind))
        fail("{}: this kind of action is not allowed, because the schedule {}", place(stage, i),
             schedule_.backward == Backward::none ? "has no backward" : "does not split the backward");
      if (int& at = at_[index(action)]; at != kAbsent)
        fail("{}: duplicate of action {}", place(stage, i), at);
      else
        at = static_cast<int>(i);
    }
    for (int kind = 0; kind < kNumKinds; ++kind)
      for (int chunk = 0; chunk < shape_.chunks; ++chunk)
        for (int i = 0; i < shape_.micro_batches; ++i) {
          const PipelineAction action{static_cast<ActionKind>(kind), chunk, i};
          if (has(action.kind) && at_[index(action)] == kAbsent)
            fail("stage {}: {} is missing from its {} actions", stage, name(action), actions.size());
        }
  }

  void check_order(int stage) const {
    const std::vector<PipelineAction>& actions = schedule_.stages[static_cast<size_t>(stage)];
    for (size_t i = 0; i < actions.size(); ++i) {
      const PipelineAction& action = actions[i];
      const auto wants = [&](const PipelineAction& before, const char* why) {
        if (at_[index(before)] > static_cast<int>(i))
          fail("{} comes before {} (action {}); {}", place(stage, i), name(before), at_[index(before)], why);
      };
      if (action.kind == ActionKind::backward)
        wants({ActionKind::forward, action.chunk, action.micro_batch}, "backward needs the activations of the forward");
      if (action.kind == ActionKind::weights)
        wants({ActionKind::backward, action.chunk, action.micro_batch},
              "weight gradients need the output gradients of the backward");
      if (action.micro_batch > 0)
        wants({action.kind, action.chunk, action.micro_batch - 1},
              "micro-batches must be in ascending order, so that gradients are summed as in one process");
    }
  }

  size_t channel(ActionKind kind, int from, int to) const {
    return static_cast<size_t>(2 * edge_of(kind, from, to) + (kind == ActionKind::forward ? 0 : 1));
  }

  // Checks that the sender and the receiver of every channel use the same order of messages. A message is identified by
  // the action that needs it.
  void check_channels() const {
    std::vector<std::vector<PipelineAction>> sent(static_cast<size_t>(2 * shape_.stages)), received = sent;
    for (const StagePlan& plan : plans_)
      for (const StageStep& step : plan.steps) {
        if (step.kind == StepKind::send) {
          PipelineAction needed = step.action;
          needed.chunk = destination_of(shape_, plan.stage, step.action)->chunk;
          sent[channel(step.action.kind, plan.stage, step.peer)].push_back(needed);
        } else if (step.kind == StepKind::receive) {
          received[channel(step.action.kind, step.peer, plan.stage)].push_back(step.action);
        }
      }
    for (int edge = 0; edge < shape_.stages; ++edge)
      for (const ActionKind kind : {ActionKind::forward, ActionKind::backward}) {
        const int after = (edge + 1) % shape_.stages;
        const int from = kind == ActionKind::forward ? edge : after, to = from == edge ? after : edge;
        const size_t at = channel(kind, from, to);
        for (size_t i = 0; i < received[at].size(); ++i)
          if (received[at][i] != sent[at][i])
            fail(
                "stage {} expects the input of {} as message {} from stage {}, which sends the input of {}; neighbours "
                "must use the same message order",
                to, name(received[at][i]), i, from, name(sent[at][i]));
      }
  }

  // Runs the steps of all stages until all are done or none can proceed, which is a deadlock. A channel holds at most
  // `capacity` unreceived messages.
  void check_progress(int capacity) const {
    const auto num_channels = static_cast<size_t>(2 * shape_.stages);
    std::vector<size_t> next(plans_.size(), 0);
    std::vector<int> unreceived(num_channels, 0);  // messages sent minus receives started; may be negative
    std::vector<bool> available(static_cast<size_t>(kNumKinds * shape_.virtual_stages() * shape_.micro_batches), false);
    const auto slot = [&](const StageChunk& at, const PipelineAction& action) {
      const int virtual_stage = at.chunk * shape_.stages + at.stage;
      return static_cast<size_t>((static_cast<int>(action.kind) * shape_.virtual_stages() + virtual_stage) *
                                     shape_.micro_batches +
                                 action.micro_batch);
    };
    const auto can = [&](const StagePlan& plan, const StageStep& step) {
      if (step.kind == StepKind::compute)
        return !source_of(shape_, plan.stage, step.action) ||
               available[slot({plan.stage, step.action.chunk}, step.action)];
      return step.kind == StepKind::receive || unreceived[channel(step.action.kind, plan.stage, step.peer)] < capacity;
    };
    const auto take = [&](const StagePlan& plan, const StageStep& step) {
      if (step.kind == StepKind::receive) {
        --unreceived[channel(step.action.kind, step.peer, plan.stage)];
        return;
      }
      const auto to = destination_of(shape_, plan.stage, step.action);
      if (step.kind == StepKind::send) ++unreceived[channel(step.action.kind, plan.stage, step.peer)];
      if (step.kind == StepKind::send || (to && to->stage == plan.stage)) available[slot(*to, step.action)] = true;
    };
    for (bool moved = true; moved;) {
      moved = false;
      for (const StagePlan& plan : plans_)
        for (size_t& at = next[static_cast<size_t>(plan.stage)]; at < plan.steps.size() && can(plan, plan.steps[at]);
             ++at, moved = true)
          take(plan, plan.steps[at]);
    }
    for (const StagePlan& plan : plans_)
      if (const size_t at = next[static_cast<size_t>(plan.stage)]; at < plan.steps.size())
        fail_stuck(plan, plan.steps[at]);
  }

  [[noreturn]] void fail_stuck(const StagePlan& plan, const StageStep& step) const {
    const std::vector<PipelineAction>& actions = schedule_.stages[static_cast<size_t>(plan.stage)];
    size_t at = 0;
    while (actions[at] != step.action) ++at;
    if (step.kind == StepKind::send)
      fail("{} waits forever to send its result to stage {}, which receives other messages first",
           place(plan.stage, at), step.peer);
    const StageChunk source = *source_of(shape_, plan.stage, step.action);
    fail("{} waits forever for {} of stage {}, which waits for this stage", place(plan.stage, at),
         name({step.action.kind, source.chunk, step.action.micro_batch}), source.stage);
  }

  const PipelineSchedule& schedule_;
  const ScheduleShape shape_;
  std::vector<int> at_;  // position of each action in the list of the stage being checked
  std::vector<StagePlan> plans_;
};

}  // namespace

void validate(const PipelineSchedule& schedule) {
  Validator(schedule).run();
}

}  // namespace esp::parallel
