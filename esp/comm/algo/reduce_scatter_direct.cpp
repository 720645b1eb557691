// Every rank collects its chunk from all the others and sums in rank order, whatever the chunking.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule reduce_scatter_direct(const Problem& problem) {
  Draft draft;
  Region own = output(0, chunk_of(problem.count, problem.size, problem.rank).count);
  direct_reduce_scatter(draft, everyone(problem), input(0, problem.count), own);
  return draft.finish();
}

}  // namespace esp::comm
