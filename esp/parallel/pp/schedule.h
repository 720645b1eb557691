// Pipeline schedules as data: for every stage, the list of actions it runs, in order.
//
// A model is cut in P·v pieces; stage k of P holds the v chunks c = 0..v−1, chunk c being piece c·P + k, so that what
// leaves the last stage's chunk c goes on to the first stage's chunk c + 1. An action is the forward (F), backward (B)
// or weight gradient (W) of one chunk for one micro-batch. Where `backward` is split, B makes input gradients only and
// W the weights' later (zero-bubble schedules); elsewhere B makes both.
//
// Schedules are pure values: the same for the trainer, which runs one stage's list (runner.h), for the simulator
// (simulate.h) and for pictures. Sends and receives are not written down; they follow (steps.h).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace esp::parallel {

enum class ActionKind : uint8_t { forward, backward, weights };

struct Action {
  ActionKind kind = ActionKind::forward;
  int chunk = 0, micro_batch = 0;
  bool operator==(const Action&) const = default;
};

struct ScheduleShape {
  int stages = 1, chunks = 1, micro_batches = 1;
  int pieces() const { return stages * chunks; }
  bool operator==(const ScheduleShape&) const = default;
};

enum class Backward : uint8_t { none, whole, split };  // none: evaluation, only F

struct Schedule {
  std::string name;
  ScheduleShape shape;
  Backward backward = Backward::whole;
  std::vector<std::vector<Action>> stages;
  bool operator==(const Schedule&) const = default;
};

// "F3", and where stages hold several chunks "F3.1": micro-batch 3 of chunk 1.
std::string name_of(const Action& action, int num_chunks);

// Where an action's other end is. F of a piece needs F of the piece before, B needs B of the piece after; the first
// piece's F, the last piece's B and every W need no one. The chunk is that of the other stage.
struct Place {
  int stage = 0, chunk = 0;
  bool operator==(const Place&) const = default;
};
std::optional<Place> source_of(const ScheduleShape& shape, int stage, const Action& action);
std::optional<Place> destination_of(const ScheduleShape& shape, int stage, const Action& action);

// What one stage's whole share of one micro-batch takes, all its chunks together.
struct StageTimes {
  double forward = 1, backward = 1, weights = 1;
  double sum() const { return forward + backward + weights; }
};

struct ScheduleRow {
  std::string_view name, help;
  Backward backward;
  bool chunked;  // whether a stage may hold more than one chunk
  std::vector<Action> (*actions)(const ScheduleShape& shape, int stage);
  // What theory says of equal stages and free transfers: the time of a step, and the most (chunk, micro-batch)
  // activations a stage holds at once (for ZB-H1 a bound).
  double (*makespan)(const ScheduleShape& shape, const StageTimes& times);
  int (*live)(const ScheduleShape& shape, int stage);
};
std::span<const ScheduleRow> schedules();
const ScheduleRow& schedule_row(std::string_view name);  // UsageError lists the known

// UsageError says which shapes would work. Any number of stages and micro-batches, also fewer of these than of those;
// `interleaved` wants the micro-batches to be a multiple of the stages.
Schedule make_schedule(std::string_view name, const ScheduleShape& shape);
// Only forwards, in an order every shape can run: for evaluation.
Schedule forward_schedule(const ScheduleShape& shape);

}  // namespace esp::parallel
