// The root sends the whole to one rank after the other. For reference only.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule broadcast_naive(const Problem& problem) {
  Draft draft;
  Line line = everyone_from(problem, problem.root);
  Region all = output(0, problem.count);
  if (line.me == 0) draft.copy(all, input(0, problem.count));
  for (int v = 1; v < line.size(); ++v, ++draft.round) {
    if (line.me == 0) draft.send(line.at(v), all);
    if (line.me == v) draft.receive(problem.root, all);
  }
  return draft.finish();
}

}  // namespace esp::comm
