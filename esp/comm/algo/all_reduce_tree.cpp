// Binomial reduce to rank 0, binomial broadcast back. Few messages; for tiny buffers.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule all_reduce_tree(const Problem& problem) {
  Draft draft;
  Region all = output(0, problem.count);
  draft.copy(all, input(0, problem.count));
  tree_reduce(draft, everyone(problem), all);
  tree_broadcast(draft, everyone(problem), all);
  return draft.finish();
}

}  // namespace esp::comm
