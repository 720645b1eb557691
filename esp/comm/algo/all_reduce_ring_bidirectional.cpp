// Two rings at once: the first half of the buffer goes right, the second left, so both directions of every link work.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule all_reduce_ring_bidirectional(const Problem& problem) {
  Draft draft;
  Region all = output(0, problem.count);
  draft.copy(all, input(0, problem.count));
  Line right = everyone(problem), left = reversed(right);
  for (int half = 0; half < 2; ++half) {
    draft.round = 0;
    ring_reduce_scatter(draft, half == 0 ? right : left, chunk(all, 2, half));
    ring_all_gather(draft, half == 0 ? right : left, chunk(all, 2, half));
  }
  return draft.finish();
}

}  // namespace esp::comm
