// Pairwise all-gather: every rank sends its chunk directly to every other rank.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule all_gather_pairwise(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  BufferRegion all = output(0, spec.count), own = chunk(all, spec.size, spec.rank);
  builder.copy(own, input(0, own.count));
  pairwise_all_gather(builder, all_ranks(spec), all);
  return builder.finish();
}

}  // namespace esp::comm
