// The root sends every rank its chunk, one after the other.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule scatter_direct(const Problem& problem) {
  Draft draft;
  Line line = everyone_from(problem, problem.root);
  Region in = input(0, problem.count), mine = chunk(in, problem.size, problem.rank);
  if (line.me == 0) draft.copy(output(0, mine.count), mine);
  for (int v = 1; v < line.size(); ++v, ++draft.round) {
    if (line.me == 0) draft.send(line.at(v), chunk(in, problem.size, line.at(v)));
    if (line.me == v) draft.receive(problem.root, output(0, mine.count));
  }
  return draft.finish();
}

}  // namespace esp::comm
