// Bytes sent by Espalier's collectives, counted from the schedules that the communicators execute.
#include "esp/comm/algo/table.h"
#include "esp/plan/espalier_memory.h"

namespace esp::plan {

double bytes_sent(const dry_run::CommCall& call, const Policy& p, const EspalierRank& rank, const char* algorithm) {
  const auto bytes = static_cast<double>(call.count * call.element_bytes);
  if (call.op == comm::Op::send) return bytes;
  comm::CollectiveSpec problem;
  problem.op = call.op;
  problem.count = static_cast<size_t>(call.count);
  switch (call.axis) {
    case parallel::MeshAxis::tensor:
      problem.size = p.tp, problem.rank = rank.tensor;
      break;
    case parallel::MeshAxis::context:
      problem.size = p.cp, problem.rank = rank.replica % p.cp;
      break;
    case parallel::MeshAxis::model:
      problem.size = p.tp * p.pp, problem.rank = rank.tensor + p.tp * rank.stage;
      break;
    case parallel::MeshAxis::pipe:  // the first and last stage, which share the tied table
      problem.size = 2, problem.rank = rank.stage == 0 ? 0 : 1;
      break;
    default:
      problem.size = p.dp * p.cp, problem.rank = rank.replica;
  }
  if (problem.size == 1) return 0;
  double sent = 0;
  for (const comm::Action& action : comm::find_algorithm(call.op, algorithm).build(problem).actions)
    if (action.type == comm::ActionType::send) sent += static_cast<double>(action.region.count);
  return sent * static_cast<double>(call.element_bytes);
}

}  // namespace esp::plan
