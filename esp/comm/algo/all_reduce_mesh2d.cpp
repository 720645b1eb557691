// 2D mesh all-reduce: a full ring all-reduce along the rows, then one along the columns. A mesh row has no link from
// its last rank to its first. The ring's message between these two ranks travels back along the row, so each link
// carries one flow per direction.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule all_reduce_mesh2d(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  RankGrid shape = grid_for(spec, 2);
  BufferRegion all = output(0, spec.count);
  builder.copy(all, input(0, spec.count));
  for (int axis = 0; axis < 2; ++axis) {
    RankSequence sequence = ranks_along(shape, spec.rank, axis);
    ring_reduce_scatter(builder, sequence, all);
    ring_all_gather(builder, sequence, all);
  }
  return builder.finish();
}

}  // namespace esp::comm
