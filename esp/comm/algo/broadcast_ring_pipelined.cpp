// A line of K ranks from the root on, the message in s segments: in round j the rank at position i forwards segment j -
// i. K - 2 + s rounds, each of one segment.
#include <algorithm>

#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"
#include "esp/comm/algo/segments.h"

namespace esp::comm {

int line_segments(const Problem& problem) {
  if (problem.segments > 0) return problem.segments;
  return static_cast<int>(std::clamp<size_t>(problem.count / 16384, 1, 256));
}

Schedule broadcast_ring_pipelined(const Problem& problem) {
  Draft draft;
  Line line = everyone_from(problem, problem.root);
  int v = line.me, n = line.size(), s = line_segments(problem);
  Region all = output(0, problem.count);
  if (v == 0) draft.copy(all, input(0, problem.count));
  for (int j = 0; j < s; ++j) {
    draft.round = v + j;
    if (v + 1 < n) draft.send(line.at(v + 1), chunk(all, s, j));
    draft.round = v - 1 + j;
    if (v > 0) draft.receive(line.at(v - 1), chunk(all, s, j));
  }
  draft.round = n > 1 ? n - 2 + s : 0;
  return draft.finish();
}

}  // namespace esp::comm
