// Binomial scatter of N chunks, then a ring all-gather of them: each byte crosses the root's port once, not log N
// times.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule broadcast_scatter_allgather(const Problem& problem) {
  Draft draft;
  Line line = everyone_from(problem, problem.root);
  Region all = output(0, problem.count);
  if (line.me == 0) draft.copy(all, input(0, problem.count));
  tree_scatter(draft, line, all);
  ring_all_gather(draft, line, all);
  return draft.finish();
}

}  // namespace esp::comm
