// Bytes of this program's calls, by the schedules that its communicators execute.
#include "esp/comm/algo/table.h"
#include "esp/plan/own_memory.h"

namespace esp::plan {

double bytes_sent(const ghost::Call& call, const Policy& p, const OwnPlace& place, const char* algorithm) {
  const auto bytes = static_cast<double>(call.count * call.element);
  if (call.op == comm::Op::send) return bytes;
  comm::CollectiveSpec problem;
  problem.op = call.op;
  problem.count = static_cast<size_t>(call.count);
  switch (call.axis) {
    case parallel::MeshAxis::tensor:
      problem.size = p.tp, problem.rank = place.tensor;
      break;
    case parallel::MeshAxis::context:
      problem.size = p.cp, problem.rank = place.copy % p.cp;
      break;
    case parallel::MeshAxis::model:
      problem.size = p.tp * p.pp, problem.rank = place.tensor + p.tp * place.stage;
      break;
    case parallel::MeshAxis::pipe:  // the first and last stage
      problem.size = 2, problem.rank = place.stage == 0 ? 0 : 1;
      break;
    default:
      problem.size = p.dp * p.cp, problem.rank = place.copy;
  }
  if (problem.size == 1) return 0;
  double sent = 0;
  for (const comm::Action& action : comm::find_algorithm(call.op, algorithm).build(problem).actions)
    if (action.act == comm::Act::send) sent += static_cast<double>(action.region.count);
  return sent * static_cast<double>(call.element);
}

}  // namespace esp::plan
