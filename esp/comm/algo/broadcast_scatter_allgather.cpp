// Broadcast as a binomial scatter of N chunks and a ring all-gather. Each byte leaves the root's port once instead of
// log N times.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule broadcast_scatter_allgather(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  RankSequence sequence = ranks_from(spec, spec.root);
  BufferRegion all = output(0, spec.count);
  if (sequence.me == 0) builder.copy(all, input(0, spec.count));
  tree_scatter(builder, sequence, all);
  ring_all_gather(builder, sequence, all);
  return builder.finish();
}

}  // namespace esp::comm
