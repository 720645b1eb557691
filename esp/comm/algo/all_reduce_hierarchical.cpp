// Hierarchical: reduce to a leader per node, ring all-reduce among the leaders, broadcast in the node. The grid is
// ranks per node × nodes. Each node sends 2(M-1)/M·S to other nodes, all of it through its leader.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule all_reduce_hierarchical(const Problem& problem) {
  Draft draft;
  Shape shape = shape_of(problem, 2);
  Line node = along(shape, problem.rank, 0), leaders = along(shape, problem.rank, 1);
  if (node.me != 0) leaders.me = -1;
  Region all = output(0, problem.count);
  draft.copy(all, input(0, problem.count));
  tree_reduce(draft, node, all);
  ring_reduce_scatter(draft, leaders, all);
  ring_all_gather(draft, leaders, all);
  tree_broadcast(draft, node, all);
  return draft.finish();
}

}  // namespace esp::comm
