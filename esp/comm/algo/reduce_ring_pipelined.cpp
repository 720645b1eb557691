// The pipelined broadcast reversed: segments travel from the far end of the line to the root and pick up each rank's
// values on the way. Order x_{root}, + (x_{root+1} + (… + x_{root-1})). K - 2 + s rounds.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"
#include "esp/comm/algo/segments.h"

namespace esp::comm {

Schedule reduce_ring_pipelined(const Problem& problem) {
  Draft draft;
  Line line = everyone_from(problem, problem.root);
  int v = line.me, n = line.size(), s = line_segments(problem);
  Region in = input(0, problem.count), sum = output(0, problem.count);
  if (v != 0) sum = v == n - 1 ? in : draft.scratch(problem.count);
  if (sum.buffer != Buffer::input) draft.copy(sum, in);
  for (int j = 0; j < s; ++j) {
    draft.round = n - 1 - v + j;
    if (v > 0) draft.send(line.at(v - 1), chunk(sum, s, j));
    draft.round = n - 2 - v + j;
    if (v + 1 < n) draft.receive_reduce(line.at(v + 1), chunk(sum, s, j));
  }
  draft.round = n > 1 ? n - 2 + s : 0;
  return draft.finish();
}

}  // namespace esp::comm
