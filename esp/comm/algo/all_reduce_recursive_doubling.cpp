// Recursive doubling (butterfly): for d = 1, 2, 4, … exchange the whole vector with virtual rank v xor d and add. Every
// rank adds for itself, always the lower virtual rank first, so all hold the same bits, NaN payloads included.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule all_reduce_recursive_doubling(const Problem& problem) {
  Draft draft;
  Region all = output(0, problem.count);
  draft.copy(all, input(0, problem.count));
  Fold fold = fold_of(problem.rank, problem.size);
  fold_in(draft, fold, all);
  Region other = fold.v >= 0 && fold.p > 1 ? draft.scratch(problem.count) : Region{};
  for (int d = 1; d < fold.p; d *= 2, ++draft.round) {
    if (fold.v < 0) continue;
    int peer = fold.real(fold.v ^ d);
    draft.send(peer, all);
    draft.receive(peer, other);
    draft.reduce(all, (fold.v & d) == 0 ? std::vector{all, other} : std::vector{other, all});
  }
  fold_out(draft, fold, all);
  return draft.finish();
}

}  // namespace esp::comm
