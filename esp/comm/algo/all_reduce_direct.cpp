// Direct: every rank receives its chunk from all others and sums x_0 + x_1 + … + x_{N-1}, for any chunking; then each
// rank sends its chunk to all. Pipelines, shards and servers that sum in rank order are bit-identical to it.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule all_reduce_direct(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  RankSequence sequence = all_ranks(spec);
  BufferRegion out = output(0, spec.count);
  direct_reduce_scatter(builder, sequence, input(0, spec.count), chunk(out, spec.size, spec.rank));
  pairwise_all_gather(builder, sequence, out);
  return builder.finish();
}

}  // namespace esp::comm
