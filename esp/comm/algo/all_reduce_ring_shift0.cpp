// The ring as drawn in textbooks: rank r sends its own chunk r first and ends the reduce-scatter with chunk r + 1.
// Chunk k is summed in the order x_k, x_{k+1}, …, x_{k-1}. Bytes and rounds are the same as in all_reduce_ring.cpp.
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
