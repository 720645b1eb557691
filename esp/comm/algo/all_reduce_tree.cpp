// Binomial-tree reduce to rank 0, then binomial-tree broadcast. Sends few messages; for small buffers.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule all_reduce_tree(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  BufferRegion all = output(0, spec.count);
  builder.copy(all, input(0, spec.count));
  tree_reduce(builder, all_ranks(spec), all);
  tree_broadcast(builder, all_ranks(spec), all);
  return builder.finish();
}

}  // namespace esp::comm
