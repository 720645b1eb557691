// Every rank sends its chunk straight to each of the others.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule all_gather_pairwise(const Problem& problem) {
  Draft draft;
  Region all = output(0, problem.count), own = chunk(all, problem.size, problem.rank);
  draft.copy(own, input(0, own.count));
  pairwise_all_gather(draft, everyone(problem), all);
  return draft.finish();
}

}  // namespace esp::comm
