// Ring: reduce-scatter, then all-gather. Chunk k sums x_{k+1}, …, x_k; each chunk is finished once and then copied.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule all_reduce_ring(const Problem& problem) {
  Draft draft;
  Region all = output(0, problem.count);
  draft.copy(all, input(0, problem.count));
  ring_reduce_scatter(draft, everyone(problem), all);
  ring_all_gather(draft, everyone(problem), all);
  return draft.finish();
}

}  // namespace esp::comm
