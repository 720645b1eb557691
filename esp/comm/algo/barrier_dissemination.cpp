// Dissemination barrier: in round k signal rank r + 2^k and wait for r - 2^k. Messages carry no bytes.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule barrier_dissemination(const Problem& problem) {
  Draft draft;
  int n = problem.size, r = problem.rank;
  for (int step = 1; step < n; step *= 2, ++draft.round) {
    draft.signal((r + step) % n);
    draft.await(mod(r - step, n));
  }
  return draft.finish();
}

}  // namespace esp::comm
