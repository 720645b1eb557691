// Binomial broadcast: in each round every rank that has the data passes it on.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule broadcast_tree(const Problem& problem) {
  Draft draft;
  Region all = output(0, problem.count);
  if (problem.rank == problem.root) draft.copy(all, input(0, problem.count));
  tree_broadcast(draft, everyone_from(problem, problem.root), all);
  return draft.finish();
}

}  // namespace esp::comm
