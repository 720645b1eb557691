// Every rank sends the root its whole vector; the root sums in rank order, rounding once.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule reduce_naive(const Problem& problem) {
  Draft draft;
  Line line = everyone_from(problem, problem.root);
  Region in = input(0, problem.count);
  std::vector<Region> terms(static_cast<size_t>(problem.size));
  terms[static_cast<size_t>(problem.root)] = in;
  for (int v = 1; v < line.size(); ++v, ++draft.round) {
    if (line.me == v) draft.send(problem.root, in);
    if (line.me != 0) continue;
    Region& term = terms[static_cast<size_t>(line.at(v))];
    term = draft.scratch(problem.count);
    draft.receive(line.at(v), term);
  }
  if (line.me == 0 && line.size() == 1) draft.copy(output(0, problem.count), in);
  if (line.me == 0 && line.size() > 1) draft.reduce(output(0, problem.count), terms);
  return draft.finish();
}

}  // namespace esp::comm
