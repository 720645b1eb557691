// Direct reduce-scatter: every rank receives its chunk from all other ranks and sums in rank order, for any chunking.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule reduce_scatter_direct(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  BufferRegion own = output(0, chunk_of(spec.count, spec.size, spec.rank).count);
  direct_reduce_scatter(builder, all_ranks(spec), input(0, spec.count), own);
  return builder.finish();
}

}  // namespace esp::comm
