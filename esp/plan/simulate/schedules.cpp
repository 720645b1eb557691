#include "esp/plan/simulate/schedules.h"

#include <algorithm>
#include <array>
#include <deque>
#include <utility>

#include <fmt/format.h>

#include "esp/base/error.h"

namespace esp::plan {
namespace {

using parallel::ActionKind;
using parallel::PipelineAction;

// Builds the list of actions of a stage. Each call adds the next micro-batch of one kind of action and one chunk.
// Micro-batches beyond the last are omitted, so one pattern serves any number of micro-batches.
class ActionListBuilder {
 public:
  ActionListBuilder(int first, int second) : num_micro_batches_{first, second} {}
  void forward(int chunk) { add(ActionKind::forward, chunk); }
  void backward(int chunk) { add(ActionKind::backward, chunk), pending_weights_.push_back(chunk); }
  void weights(int chunk) {
    pending_weights_.erase(std::find(pending_weights_.begin(), pending_weights_.end(), chunk));
    add(ActionKind::weights, chunk);
  }
  void oldest_pending_weights() { weights(pending_weights_.front()); }
  bool has_pending_weights(int chunk) const {
    return std::find(pending_weights_.begin(), pending_weights_.end(), chunk) != pending_weights_.end();
  }
  int num_forward(int chunk) const { return next_[0][at(chunk)]; }
  std::vector<PipelineAction> take() { return std::move(actions_); }

 private:
  static size_t at(int chunk) { return static_cast<size_t>(chunk); }
  void add(ActionKind kind, int chunk) {
    const int micro_batch = next_[static_cast<size_t>(kind)][at(chunk)]++;
    if (micro_batch < num_micro_batches_[at(chunk)]) actions_.push_back({kind, chunk, micro_batch});
  }
  std::array<int, 2> num_micro_batches_;
  std::array<std::array<int, 2>, 3> next_{};  // [kind][chunk]: next micro-batch
  std::deque<int> pending_weights_;  // chunk of each weight gradient that is still to be computed, oldest first
  std::vector<PipelineAction> actions_;
};

// ZB-2P: stage k of P stages begins with 2(P − k) − 1 forwards and delays 2k weight gradients.
std::vector<PipelineAction> zb_2p_actions(int P, int m, int k) {
  ActionListBuilder list(m, 0);
  const int warm_up = std::min(m, 2 * (P - k) - 1);
  for (int i = 0; i < warm_up; ++i) list.forward(0);
  for (int i = 0; i < m; ++i) {
    list.backward(0);
    if (i >= 2 * k) list.weights(0);
    if (warm_up + i < m) list.forward(0);
  }
  while (list.has_pending_weights(0)) list.weights(0);
  return list.take();
}

// ZB-V: a stage runs forwards until its first backward can start. Then it alternates forward, input gradient and weight
// gradient of both chunks.
std::vector<PipelineAction> zb_v_actions(int P, int m, int k) {
  const int n = std::max(2 * P - 1, m);
  ActionListBuilder list(m, m);
  for (int i = 0; i < 2 * (P - k) - 1; ++i) list.forward(0);
  for (int i = 0; i < k; ++i) list.forward(1), list.forward(0);
  for (int i = 0; i < P - k; ++i) list.forward(1), list.backward(1), list.weights(1);
  while (list.num_forward(1) < n) {
    if (list.num_forward(0) < n) list.forward(0);
    list.backward(0), list.weights(0);
    list.forward(1), list.backward(1), list.weights(1);
  }
  for (int i = 0; i < k; ++i) list.backward(0), list.backward(1);
  for (int i = 0; i < P - k; ++i) list.backward(0), list.weights(0);
  for (const int chunk : {1, 0})
    while (list.has_pending_weights(chunk)) list.weights(chunk);
  return list.take();
}

// V-Half and V-Min: a pattern of six time units repeats for every micro-batch. Each unit is one kind of action of one
// chunk (forward, input gradient, weight gradient; two chunks). `down` and `up`: time units from one stage to the next
// on the way down and up the V; their sum determines the memory of a stage.
struct RepeatingBlock {
  int down = 1, up = 1;
  // idle time units at the turn from down to up, at the loss, and at the turn in backward
  int turn = 0, loss = 0, back = 0;

  // Start times on stage k of micro-batch 0: forward of chunks 0 and 1, backward of chunks 1 and 0.
  std::array<int, 4> starts(int P, int k) const {
    const int foot = down * (P - 1) + 1 + turn, top = foot + up * (P - 1) + 1 + loss;
    const int again = top + down * (P - 1) + 1 + back;
    return {down * k, foot + up * (P - 1 - k), top + down * k, again + up * (P - 1 - k)};
  }
  bool collides(int P) const {
    for (int k = 0; k < P; ++k) {
      std::array<bool, 6> taken{};
      for (const int start : starts(P, k))
        if (std::exchange(taken[static_cast<size_t>(start % 6)], true)) return true;
    }
    return false;
  }
};

RepeatingBlock fitting_block(int down, int up, int P) {
  for (int more = 0; more <= 15; ++more)
    for (int turn = 0; turn <= std::min(5, more); ++turn)
      for (int loss = 0; turn + loss <= more && loss <= 5; ++loss) {
        const RepeatingBlock block{down, up, turn, loss, more - turn - loss};
        if (block.back <= 5 && !block.collides(P)) return block;
      }
  throw UsageError(
      fmt::format("schedules v-half and v-min: got {} stages, for which no repeating block exists. "
                  "Use zb-v, which supports any number",
                  P));
}

std::vector<PipelineAction> v_block_actions(const RepeatingBlock& block, int P, int m, int k) {
  const std::array<int, 4> starts = block.starts(P, k);
  std::array<bool, 6> taken{};
  for (const int start : starts) taken[static_cast<size_t>(start % 6)] = true;
  // The pattern has two free time units. The weight gradient of each chunk is computed in one of them, after the
  // backward of that chunk.
  const auto next_free = [&](int from) {
    while (taken[static_cast<size_t>(from % 6)]) ++from;
    taken[static_cast<size_t>(from % 6)] = true;
    return from;
  };
  struct SlottedAction {
    int at;
    PipelineAction action;
  };
  const int second = next_free(starts[2] + 1), first = next_free(starts[3] + 1);
  const SlottedAction one[] = {{starts[0], {ActionKind::forward, 0, 0}},  {starts[1], {ActionKind::forward, 1, 0}},
                               {starts[2], {ActionKind::backward, 1, 0}}, {starts[3], {ActionKind::backward, 0, 0}},
                               {second, {ActionKind::weights, 1, 0}},     {first, {ActionKind::weights, 0, 0}}};
  std::vector<SlottedAction> all;
  for (int i = 0; i < m; ++i)
    for (SlottedAction timed : one) {
      timed.at += 6 * i;
      timed.action.micro_batch = i;
      all.push_back(timed);
    }
  std::sort(all.begin(), all.end(), [](const SlottedAction& a, const SlottedAction& b) { return a.at < b.at; });
  std::vector<PipelineAction> actions;
  for (const SlottedAction& timed : all) actions.push_back(timed.action);
  return actions;
}

// DualPipe: micro-batches enter the pipeline at both ends. `near`: the direction that enters at the end nearest to this
// stage; `far`: the other direction. r: number of stages between the nearest end and this stage.
std::vector<PipelineAction> dualpipe_actions(int P, int first, int second, int k) {
  const int half = P / 2, r = std::min(k, P - 1 - k), near = k < half ? 0 : 1, far = 1 - near;
  const int n = std::max({P, first, second}), inner = half - r - 1, outer = r + 1;
  ActionListBuilder list(first, second);
  const auto whole = [&](int chunk) { list.backward(chunk), list.weights(chunk); };
  for (int i = 0; i < 2 * inner; ++i) list.forward(near);
  for (int i = 0; i < outer; ++i) list.forward(near), list.forward(far);
  for (int i = 0; i < inner; ++i) list.backward(far), list.weights(far), list.forward(far);
  for (int i = 0; i < n - P + outer; ++i) list.forward(near), whole(far), list.forward(far), whole(near);
  for (int i = 0; i < inner; ++i) whole(far), list.forward(far), whole(near);
  // The first half of these backwards computes its weight gradients at once; the second half computes them at the end.
  for (int i = 0; i < 2 * outer; ++i) {
    const int chunk = i % 2 == 0 ? far : near;
    list.backward(chunk);
    if (i < outer) list.weights(chunk);
  }
  for (int i = 0; i < inner; ++i) list.oldest_pending_weights(), list.backward(near);
  for (int i = 0; i < outer; ++i) list.oldest_pending_weights();
  return list.take();
}

template <typename Actions>
StepSchedule build_schedule(const Policy& policy, int chunks, int micro_batches, PiecePlacement placement,
                            bool synchronised, Actions&& actions) {
  StepSchedule result;
  result.schedule = {policy.schedule, {policy.pp, chunks, micro_batches}, parallel::Backward::split, {}};
  for (int stage = 0; stage < policy.pp; ++stage) result.schedule.stages.push_back(actions(stage));
  result.placement = placement;
  result.synchronised = synchronised;
  return result;
}

}  // namespace

StepSchedule step_schedule(const Policy& policy) {
  const std::string& name = policy.schedule;
  const int P = policy.pp, m = static_cast<int>(std::max<int64_t>(1, policy.num_micro_batches()));
  if (P == 1) return {parallel::make_schedule("1f1b", {1, 1, m})};
  if (name == "zb-2p" || name == "zb-h2")
    return build_schedule(policy, 1, m, PiecePlacement::cyclic, false, [&](int k) { return zb_2p_actions(P, m, k); });
  if (name == "zb-v" || name == "v-zb")
    return build_schedule(policy, 2, m, PiecePlacement::folded, false, [&](int k) { return zb_v_actions(P, m, k); });
  if (name == "v-half" || name == "v-min") {
    const RepeatingBlock block = fitting_block(name == "v-half" ? 2 : 1, 1, P);
    return build_schedule(policy, 2, m, PiecePlacement::folded, false,
                          [&](int k) { return v_block_actions(block, P, m, k); });
  }
  if (name == "dualpipe") {
    if (P % 2 != 0)
      throw UsageError(
          fmt::format("schedule dualpipe: got {} stages; expected an even number. Try {} or {}", P, P - 1, P + 1));
    const int first = (m + 1) / 2, second = m / 2;
    return build_schedule(policy, 2, first, PiecePlacement::bidirectional, true,
                          [&](int k) { return dualpipe_actions(P, first, second, k); });
  }
  return {parallel::make_schedule(name == "zb-1p" ? "zb-h1" : name, {P, policy.interleave, m})};
}

int piece_at(PiecePlacement placement, const parallel::ScheduleShape& shape, int stage, int chunk) {
  if (placement == PiecePlacement::cyclic || chunk == 0) return chunk * shape.stages + stage;
  return (placement == PiecePlacement::folded ? 2 : 1) * shape.stages - 1 - stage;
}

std::optional<parallel::StageChunk> consumer_of(PiecePlacement placement, const parallel::ScheduleShape& shape,
                                                int stage, const PipelineAction& action) {
  if (placement == PiecePlacement::cyclic) return parallel::destination_of(shape, stage, action);
  if (action.kind == ActionKind::weights) return std::nullopt;
  const int P = shape.stages, by = action.kind == ActionKind::forward ? 1 : -1;
  if (placement == PiecePlacement::bidirectional) {
    const int to = action.chunk == 0 ? stage + by : stage - by;
    if (to < 0 || to >= P) return std::nullopt;
    return parallel::StageChunk{to, action.chunk};
  }
  const int piece = piece_at(placement, shape, stage, action.chunk) + by;
  if (piece < 0 || piece >= 2 * P) return std::nullopt;
  return piece < P ? parallel::StageChunk{piece, 0} : parallel::StageChunk{2 * P - 1 - piece, 1};
}

}  // namespace esp::plan
