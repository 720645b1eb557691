// Direct: every rank collects its chunk from all and sums x_0 + x_1 + … + x_{N-1}, whatever the chunking; then each
// sends its chunk to all. Every pipeline, shard or server that sums in rank order agrees with it to the bit.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule all_reduce_direct(const Problem& problem) {
  Draft draft;
  Line line = everyone(problem);
  Region out = output(0, problem.count);
  direct_reduce_scatter(draft, line, input(0, problem.count), chunk(out, problem.size, problem.rank));
  pairwise_all_gather(draft, line, out);
  return draft.finish();
}

}  // namespace esp::comm
