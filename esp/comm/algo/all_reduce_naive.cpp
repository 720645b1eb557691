// Gather to rank 0, sum there in rank order, send the sum to each. For reference only: rank 0 carries everything.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule all_reduce_naive(const Problem& problem) {
  Draft draft;
  Region in = input(0, problem.count), out = output(0, problem.count);
  if (problem.size == 1) draft.copy(out, in);
  std::vector<Region> terms{in};
  for (int r = 1; r < problem.size; ++r, ++draft.round) {
    if (problem.rank == r) draft.send(0, in);
    if (problem.rank == 0) {
      terms.push_back(draft.scratch(problem.count));
      draft.receive(r, terms.back());
    }
  }
  // Rounded once, since all terms are at hand.
  if (problem.rank == 0 && problem.size > 1) draft.reduce(out, terms);
  for (int r = 1; r < problem.size; ++r, ++draft.round) {
    if (problem.rank == 0) draft.send(r, out);
    if (problem.rank == r) draft.receive(0, out);
  }
  return draft.finish();
}

}  // namespace esp::comm
