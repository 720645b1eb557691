// Binomial-tree broadcast: in each round every rank that has the data sends it to one more rank.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule broadcast_tree(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  BufferRegion all = output(0, spec.count);
  if (spec.rank == spec.root) builder.copy(all, input(0, spec.count));
  tree_broadcast(builder, ranks_from(spec, spec.root), all);
  return builder.finish();
}

}  // namespace esp::comm
