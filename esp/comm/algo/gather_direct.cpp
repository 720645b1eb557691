// Every rank sends its chunk to the root, one after the other.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule gather_direct(const Problem& problem) {
  Draft draft;
  Line line = everyone_from(problem, problem.root);
  Region all = output(0, problem.count);
  size_t own_count = chunk(all, problem.size, problem.rank).count;
  if (line.me == 0) draft.copy(chunk(all, problem.size, problem.rank), input(0, own_count));
  for (int v = 1; v < line.size(); ++v, ++draft.round) {
    if (line.me == v) draft.send(problem.root, input(0, own_count));
    if (line.me == 0) draft.receive(line.at(v), chunk(all, problem.size, line.at(v)));
  }
  return draft.finish();
}

}  // namespace esp::comm
