// The table of pipeline schedules, with the theoretical time and memory of each.
#include <algorithm>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/base/table.h"
#include "esp/parallel/pp/schedule.h"
#include "esp/parallel/pp/stage_actions.h"

namespace esp::parallel {
namespace {

double one_by_one(const ScheduleShape& s, const StageTimes& t) {
  return s.micro_batches * s.stages * t.sum();
}
double filled_and_drained(const ScheduleShape& s, const StageTimes& t) {
  return (s.micro_batches + s.stages - 1) * t.sum();
}
double filled_by_chunks(const ScheduleShape& s, const StageTimes& t) {
  return s.micro_batches * t.sum() + (s.stages - 1) * t.sum() / s.chunks;
}
// Step time if weight gradients fill the bubbles. With fewer micro-batches than stages there are too few weight
// gradients to fill all of them.
double gaps_filled(const ScheduleShape& s, const StageTimes& t) {
  return s.micro_batches * t.sum() + (s.stages - 1) * (t.forward + std::max(0.0, t.backward - t.weights)) +
         std::max(0, s.stages - s.micro_batches) * std::min(t.backward, t.weights);
}

int one(const ScheduleShape&, int) {
  return 1;
}
int every(const ScheduleShape& s, int) {
  return s.micro_batches;
}
int distance_to_end(const ScheduleShape& s, int stage) {
  return std::min(s.stages - stage, s.micro_batches);
}
int warm_up_and_one(const ScheduleShape& s, int stage) {
  return std::min(s.micro_batches * s.chunks, 2 * (s.stages - stage - 1) + (s.chunks - 1) * s.stages + 1);
}
int as_many_as_stages(const ScheduleShape& s, int) {
  return std::min(s.stages, s.micro_batches);
}

constexpr ScheduleRow kSchedules[] = {
    {"none", "one micro-batch at a time; the other stages wait", Backward::whole, false, none_actions, one_by_one, one},
    {"gpipe", "all forwards, then all backwards", Backward::whole, false, gpipe_actions, filled_and_drained, every},
    {"1f1b", "one forward, one backward; fewer live activations than gpipe", Backward::whole, false,
     one_f_one_b_actions, filled_and_drained, distance_to_end},
    {"interleaved", "1f1b with several chunks per stage; smaller bubble, more traffic", Backward::whole, true,
     interleaved_actions, filled_by_chunks, warm_up_and_one},
    {"zb-h1", "1f1b with weight gradients in the bubbles", Backward::split, false, zb_h1_actions, gaps_filled,
     as_many_as_stages},
};

void check(const ScheduleRow& row, const ScheduleShape& shape) {
  const auto [P, v, m] = shape;
  if (P < 1 || v < 1 || m < 1)
    throw UsageError(fmt::format(
        "pipeline schedule {}: got {} stages, {} chunks per stage, {} micro-batches; expected at least 1 of each",
        row.name, P, v, m));
  if (v > 1 && !row.chunked)
    throw UsageError(
        fmt::format("pipeline schedule {}: got {} chunks per stage; expected 1. Schedule interleaved supports several",
                    row.name, v));
  if (row.chunked && m % P != 0)
    throw UsageError(fmt::format(
        "pipeline schedule {}: got {} micro-batches; expected a multiple of the {} stages. Use {}or schedule 1f1b",
        row.name, m, P, m < P ? fmt::format("{} ", P) : fmt::format("{} or {} ", m / P * P, (m / P + 1) * P)));
}

}  // namespace

std::span<const ScheduleRow> schedules() {
  return kSchedules;
}

const ScheduleRow& schedule_row(std::string_view name) {
  return find_row("pipeline schedule", kSchedules, name);
}

PipelineSchedule make_schedule(std::string_view name, const ScheduleShape& shape) {
  const ScheduleRow& row = schedule_row(name);
  check(row, shape);
  PipelineSchedule schedule{std::string(row.name), shape, row.backward, {}};
  for (int stage = 0; stage < shape.stages; ++stage) schedule.stages.push_back(row.actions(shape, stage));
  return schedule;
}

// Processes P micro-batches at a time, as in the interleaved schedule. With more at a time, the results of the last
// stage would wait while the first stage still sends. With fewer, stages would idle.
PipelineSchedule forward_schedule(const ScheduleShape& shape) {
  std::vector<PipelineAction> actions;
  for (int first = 0; first < shape.micro_batches; first += shape.stages)
    for (int chunk = 0; chunk < shape.chunks; ++chunk)
      for (int i = first; i < std::min(first + shape.stages, shape.micro_batches); ++i)
        actions.push_back(forward_of(i, chunk));
  return {"forward", shape, Backward::none,
          std::vector<std::vector<PipelineAction>>(static_cast<size_t>(shape.stages), actions)};
}

std::string name_of(const PipelineAction& action, int num_chunks) {
  const char letter = "FBW"[static_cast<size_t>(action.kind)];
  return num_chunks == 1 ? fmt::format("{}{}", letter, action.micro_batch)
                         : fmt::format("{}{}.{}", letter, action.micro_batch, action.chunk);
}

namespace {

std::optional<StageChunk> neighbour(const ScheduleShape& shape, int stage, int chunk, int by) {
  const int virtual_stage = chunk * shape.stages + stage + by;
  if (virtual_stage < 0 || virtual_stage >= shape.virtual_stages()) return std::nullopt;
  return StageChunk{virtual_stage % shape.stages, virtual_stage / shape.stages};
}

}  // namespace

std::optional<StageChunk> source_of(const ScheduleShape& shape, int stage, const PipelineAction& action) {
  if (action.kind == ActionKind::weights) return std::nullopt;
  return neighbour(shape, stage, action.chunk, action.kind == ActionKind::forward ? -1 : 1);
}

std::optional<StageChunk> destination_of(const ScheduleShape& shape, int stage, const PipelineAction& action) {
  if (action.kind == ActionKind::weights) return std::nullopt;
  return neighbour(shape, stage, action.chunk, action.kind == ActionKind::forward ? 1 : -1);
}

}  // namespace esp::parallel
