// The ring as textbooks draw it: rank r first sends its own chunk r and ends the reduce-scatter with chunk r + 1.
// Chunk k sums x_k, x_{k+1}, …, x_{k-1}. Bytes and rounds as the ring.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule all_reduce_ring_shift0(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  BufferRegion all = output(0, spec.count);
  builder.copy(all, input(0, spec.count));
  ring_reduce_scatter(builder, all_ranks(spec), all, RingStart::next);
  ring_all_gather(builder, all_ranks(spec), all, RingStart::next);
  return builder.finish();
}

}  // namespace esp::comm
