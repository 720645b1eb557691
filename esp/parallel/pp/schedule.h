// Pipeline schedules as data: for every stage, its ordered list of actions.
//
// A model is partitioned into P·v pieces; stage k of P holds the v chunks c = 0..v−1, chunk c being piece c·P + k, so
// the output of the last stage's chunk c is the input of the first stage's chunk c + 1. An action is the forward (F),
// backward (B) or weight gradient (W) of one chunk for one micro-batch. With a split backward, B computes input
// gradients only and W the weight gradients later (zero-bubble schedules); otherwise B computes both.
//
// Schedules are pure values, shared by the trainer, which runs one stage's list (runner.h), the simulator (simulate.h)
// and the pictures. Sends and receives are derived from them (steps.h).
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
  int pieces() const { return stages * chunks; }
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

// "F3", or with several chunks per stage "F3.1": micro-batch 3 of chunk 1.
std::string name_of(const PipelineAction& action, int num_chunks);

// The stage and chunk an action receives from or sends to. F of a piece needs F of the previous piece, B needs B of the
// next; the first piece's F, the last piece's B and every W have none.
struct StageChunk {
  int stage = 0, chunk = 0;
  bool operator==(const StageChunk&) const = default;
};
std::optional<StageChunk> source_of(const ScheduleShape& shape, int stage, const PipelineAction& action);
std::optional<StageChunk> destination_of(const ScheduleShape& shape, int stage, const PipelineAction& action);

// Time of one stage for one micro-batch, all its chunks together.
struct StageTimes {
  double forward = 1, backward = 1, weights = 1;
  double sum() const { return forward + backward + weights; }
};

struct ScheduleRow {
  std::string_view name, help;
  Backward backward;
  bool chunked;  // whether a stage may hold more than one chunk
  std::vector<PipelineAction> (*actions)(const ScheduleShape& shape, int stage);
  // Theory for equal stages and free transfers: the time of a step, and the maximum number of live (chunk, micro-batch)
  // activations of a stage (a bound for ZB-H1).
  double (*makespan)(const ScheduleShape& shape, const StageTimes& times);
  int (*live)(const ScheduleShape& shape, int stage);
};
std::span<const ScheduleRow> schedules();
const ScheduleRow& schedule_row(std::string_view name);  // UsageError lists the known

// UsageError names shapes that work. Any number of stages and micro-batches, also fewer micro-batches than stages;
// `interleaved` needs a multiple of the stages.
PipelineSchedule make_schedule(std::string_view name, const ScheduleShape& shape);
// Forward only, in an order every shape can run: for evaluation.
PipelineSchedule forward_schedule(const ScheduleShape& shape);

}  // namespace esp::parallel
