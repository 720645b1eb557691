#include "esp/plan/message_times.h"

#include <algorithm>

#include "esp/plan/espalier_pieces.h"

namespace esp::plan {

MessageTimes::MessageTimes(const ModelShape& shape, const Policy& policy, const parallel::ScheduleShape& pipe,
                           int stage)
    : schedule_(parallel::make_schedule(policy.schedule, pipe)), stage_(stage) {
  const auto dim = static_cast<double>(shape.hidden), classes = static_cast<double>(shape.vocab);
  const double block = dim * dim * 4 + 2 * dim * static_cast<double>(shape.seq) +
                       dim * static_cast<double>(shape.ffn) * (shape.gated ? 3 : 2);
  parallel::PipelineCosts costs;
  for (const EspalierPiece& piece : espalier_pieces(shape, pipe.virtual_stages())) {
    const double blocks = block * static_cast<double>(piece.end - piece.begin);
    // The piece with the head computes three GEMMs of the table in forward: logits and both gradients.
    costs.virtual_stages.push_back({blocks + (piece.head ? 3 * dim * classes : 0), blocks, blocks});
  }
  timeline_ = parallel::simulate(schedule_, costs);
}

double MessageTimes::sent_s(const parallel::PipelineAction& action) const {
  return timeline_.stages[static_cast<size_t>(stage_)].actions[index_of(stage_, action)].end;
}

double MessageTimes::received_s(const parallel::PipelineAction& action) const {
  const auto to = parallel::destination_of(schedule_.shape, stage_, action);
  const auto& actions = timeline_.stages[static_cast<size_t>(to->stage)].actions;
  const size_t at = index_of(to->stage, {action.kind, to->chunk, action.micro_batch});
  return std::max(sent_s(action), at > 1 ? actions[at - 1].begin : 0.0);
}

size_t MessageTimes::index_of(int stage, const parallel::PipelineAction& action) const {
  const auto& actions = schedule_.stages[static_cast<size_t>(stage)];
  return static_cast<size_t>(std::find(actions.begin(), actions.end(), action) - actions.begin());
}

}  // namespace esp::plan
