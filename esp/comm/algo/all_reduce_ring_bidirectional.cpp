// Two rings at once: the first half of the buffer travels to the right, the second half to the left, so both directions
// of every link are used.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule all_reduce_ring_bidirectional(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  BufferRegion all = output(0, spec.count);
  builder.copy(all, input(0, spec.count));
  RankSequence right = all_ranks(spec), left = reversed(right);
  for (int half = 0; half < 2; ++half) {
    builder.round = 0;
    ring_reduce_scatter(builder, half == 0 ? right : left, chunk(all, 2, half));
    ring_all_gather(builder, half == 0 ? right : left, chunk(all, 2, half));
  }
  return builder.finish();
}

}  // namespace esp::comm
