// Ring: reduce-scatter, then all-gather. Chunk k sums x_{k+1}, …, x_k; each chunk is finished once and then copied.
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
