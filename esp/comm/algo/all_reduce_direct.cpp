// Direct all-reduce. Every rank receives its chunk from all other ranks and sums x_0 + x_1 + … + x_{N-1}. Then each
// rank sends its summed chunk to all ranks. The summation order does not depend on the chunking, so pipelines, shards
// and parameter servers that also sum in rank order give bit-identical results.
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
