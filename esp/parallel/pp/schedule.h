// Pipeline schedules as data: for every stage, its ordered list of actions.
//
// A model is partitioned into P·v virtual stages. Stage k of P holds v chunks c = 0..v−1; chunk c is virtual stage c·P
// + k. So the output of the last stage's chunk c is the input of the first stage's chunk c + 1. An action is the
// forward (F), backward (B) or weight gradient (W) of one chunk for one micro-batch. With a split backward, B computes
// input gradients only and W the weight gradients later (zero-bubble schedules); otherwise B computes both.
//
// Schedules are pure values. The trainer runs one stage's list (runner.h); the simulator (simulate.h) and the figures
// use them too. Sends and receives are derived from them (steps.h).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace esp::parallel {

enum class ActionKind : uint8_t { forward, backward, weights };

struct PipelineAction {
  ActionKind kind = ActionKind::forward;
  int chunk = 0, micro_batch = 0;
  bool operator==(const PipelineAction&) const = default;
};

struct ScheduleShape {
  int stages = 1, chunks = 1, micro_batches = 1;
  int virtual_stages() const { return stages * chunks; }
  bool operator==(const ScheduleShape&) const = default;
};

enum class Backward : uint8_t { none, whole, split };  // none: evaluation, only F

struct PipelineSchedule {
  std::string name;
  ScheduleShape shape;
  Backward backward = Backward::whole;
  std::vector<std::vector<PipelineAction>> stages;
  bool operator==(const PipelineSchedule&) const = default;
};

// Returns "F3", or with several chunks per stage "F3.1": micro-batch 3 of chunk 1.
std::string name_of(const PipelineAction& action, int num_chunks);

// The stage and chunk from which an action receives, or to which it sends. F needs the F of the previous virtual stage,
// B needs the B of the next one. The first virtual stage's F, the last one's B and every W have none.
struct StageChunk {
  int stage = 0, chunk = 0;
  bool operator==(const StageChunk&) const = default;
};
std::optional<StageChunk> source_of(const ScheduleShape& shape, int stage, const PipelineAction& action);
std::optional<StageChunk> destination_of(const ScheduleShape& shape, int stage, const PipelineAction& action);

// Compute time of one stage for one micro-batch, summed over the chunks of the stage.
struct StageTimes {
  double forward = 1, backward = 1, weights = 1;
  double sum() const { return forward + backward + weights; }
};

struct ScheduleRow {
  std::string_view name, help;
  Backward backward;
  bool chunked;  // supports more than one chunk per stage
  std::vector<PipelineAction> (*actions)(const ScheduleShape& shape, int stage);
  // Theory for equal stages and zero transfer time. `makespan`: time of a step. `live`: maximum number of live (chunk,
  // micro-batch) activations of a stage (for ZB-H1 an upper bound).
  double (*makespan)(const ScheduleShape& shape, const StageTimes& times);
  int (*live)(const ScheduleShape& shape, int stage);
};
std::span<const ScheduleRow> schedules();
const ScheduleRow& schedule_row(std::string_view name);  // throws UsageError listing the known names

// If the schedule does not support the shape, throws a UsageError that suggests valid shapes. Any number of stages and
// micro-batches is valid, also fewer micro-batches than stages; only `interleaved` needs a multiple of the stages.
PipelineSchedule make_schedule(std::string_view name, const ScheduleShape& shape);
// Forward-only schedule for evaluation, in an order that works for every shape.
PipelineSchedule forward_schedule(const ScheduleShape& shape);

}  // namespace esp::parallel
