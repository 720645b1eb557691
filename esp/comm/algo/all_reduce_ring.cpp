// Ring all-reduce: reduce-scatter, then all-gather. Chunk k is summed in the order x_{k+1}, x_{k+2}, …, x_k. One rank
// completes the sum of each chunk; the other ranks copy it.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule all_reduce_ring(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  BufferRegion all = output(0, spec.count);
  builder.copy(all, input(0, spec.count));
  ring_reduce_scatter(builder, all_ranks(spec), all);
  ring_all_gather(builder, all_ranks(spec), all);
  return builder.finish();
}

}  // namespace esp::comm
