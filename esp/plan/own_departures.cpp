#include "esp/plan/own_departures.h"

#include <algorithm>

#include "esp/plan/own_pieces.h"

namespace esp::plan {

Departures::Departures(const ModelShape& shape, const Policy& policy, const parallel::ScheduleShape& pipe, int stage)
    : schedule_(parallel::make_schedule(policy.schedule, pipe)), stage_(stage) {
  const auto dim = static_cast<double>(shape.hidden), classes = static_cast<double>(shape.vocab);
  const double block = dim * dim * 4 + 2 * dim * static_cast<double>(shape.seq) +
                       dim * static_cast<double>(shape.ffn) * (shape.gated ? 3 : 2);
  parallel::PipelineCosts costs;
  for (const OwnPiece& piece : own_pieces(shape, pipe.pieces())) {
    const double blocks = block * static_cast<double>(piece.end - piece.begin);
    // The loss computes its gradients in forward.
    costs.pieces.push_back({blocks + (piece.head ? 3 * dim * classes : 0), blocks, blocks});
  }
  timeline_ = parallel::simulate(schedule_, costs);
}

double Departures::begun(const parallel::PipelineAction& action) const {
  return timeline_.stages[static_cast<size_t>(stage_)].actions[index_of(stage_, action)].end;
}

double Departures::taken(const parallel::PipelineAction& action) const {
  const auto to = parallel::destination_of(schedule_.shape, stage_, action);
  const auto& actions = timeline_.stages[static_cast<size_t>(to->stage)].actions;
  const size_t at = index_of(to->stage, {action.kind, to->chunk, action.micro_batch});
  return std::max(begun(action), at > 1 ? actions[at - 1].begin : 0.0);
}

size_t Departures::index_of(int stage, const parallel::PipelineAction& action) const {
  const auto& actions = schedule_.stages[static_cast<size_t>(stage)];
  return static_cast<size_t>(std::find(actions.begin(), actions.end(), action) - actions.begin());
}

}  // namespace esp::plan
