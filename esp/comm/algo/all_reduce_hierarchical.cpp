// Hierarchical all-reduce: reduce to one leader per node, ring all-reduce among the leaders, broadcast within each
// node. The grid is ranks per node × nodes. Each node sends 2(M-1)/M·S to other nodes, all of it through its leader.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule all_reduce_hierarchical(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  RankGrid shape = grid_for(spec, 2);
  RankSequence node = ranks_along(shape, spec.rank, 0), leaders = ranks_along(shape, spec.rank, 1);
  if (node.me != 0) leaders.me = -1;
  BufferRegion all = output(0, spec.count);
  builder.copy(all, input(0, spec.count));
  tree_reduce(builder, node, all);
  ring_reduce_scatter(builder, leaders, all);
  ring_all_gather(builder, leaders, all);
  tree_broadcast(builder, node, all);
  return builder.finish();
}

}  // namespace esp::comm
