// For d = 1, 2, 4, … swap everything held with rank r xor d. Powers of two only.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule all_gather_recursive_doubling(const Problem& problem) {
  Draft draft;
  int n = problem.size, r = problem.rank;
  Region all = output(0, problem.count), own = chunk(all, n, r);
  draft.copy(own, input(0, own.count));
  for (int d = 1; d < n; d *= 2, ++draft.round) {
    int mine = r / d * d, theirs = mine ^ d;
    draft.send(r ^ d, chunks(all, n, mine, mine + d));
    draft.receive(r ^ d, chunks(all, n, theirs, theirs + d));
  }
  return draft.finish();
}

}  // namespace esp::comm
