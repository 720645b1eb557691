// Interleaved 1F1B (Narayanan et al. 2021, Megatron-LM): every stage holds v chunks, and micro-batches pass through the
// stages v times, P at a time. A chunk takes 1/v of a stage's time, so the pipeline fill and drain also take 1/v of
// the time; the traffic is v times as large.
//
// Work item q of the forwards is micro-batch (q div Pv)·P + q mod P of chunk c = (q mod Pv) div P. Work item q of the
// backwards is the same micro-batch of chunk v − 1 − c.
#include <algorithm>

#include "esp/parallel/pp/stage_actions.h"

namespace esp::parallel {

std::vector<PipelineAction> interleaved_actions(const ScheduleShape& shape, int stage) {
  const int P = shape.stages, v = shape.chunks, items = shape.micro_batches * v;
  const auto chunk = [&](int q) { return q % (P * v) / P; };
  const auto micro_batch = [&](int q) { return q / (P * v) * P + q % P; };
  const auto forward_item = [&](int q) { return forward_of(micro_batch(q), chunk(q)); };
  const auto backward_item = [&](int q) { return backward_of(micro_batch(q), v - 1 - chunk(q)); };

  const int warm_up = std::min(items, 2 * (P - stage - 1) + (v - 1) * P);
  std::vector<PipelineAction> actions;
  for (int q = 0; q < warm_up; ++q) actions.push_back(forward_item(q));
  for (int q = 0; q < items - warm_up; ++q) {
    actions.push_back(forward_item(warm_up + q));
    actions.push_back(backward_item(q));
  }
  for (int q = items - warm_up; q < items; ++q) actions.push_back(backward_item(q));
  return actions;
}

}  // namespace esp::parallel
