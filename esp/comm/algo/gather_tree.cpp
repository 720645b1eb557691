// Binomial gather: for mask = 1, 2, 4, … position v with that bit sends the blocks [v, v + mask) to v - mask and stops.
// Blocks travel in the order of positions; the root puts a run that wraps past rank N-1 in place at the end.
#include <algorithm>

#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule gather_tree(const Problem& problem) {
  Draft draft;
  Line line = everyone_from(problem, problem.root);
  int v = line.me, n = line.size();
  Region all = output(0, problem.count);
  // Elements in blocks [first, last) of positions.
  auto elements = [&](int first, int last) {
    size_t sum = 0;
    for (int b = first; b < last; ++b) sum += chunk(all, n, line.at(b)).count;
    return sum;
  };
  size_t own_count = elements(v, v + 1);
  int subtree = 1;
  while (v % (2 * subtree) == 0 && v + subtree < n) subtree *= 2;
  int last = std::min(v + subtree, n);
  // The root's blocks have places in the output, unless their run wraps; others collect in scratch.
  Region held = v == 0 && problem.root == 0 ? all
                : last - v > 1              ? draft.scratch(elements(v, last))
                                            : input(0, own_count);
  if (held.buffer != Buffer::input) draft.copy(piece(held, {0, own_count}), input(0, own_count));
  for (int mask = 1; mask < n; mask *= 2, ++draft.round) {
    if (v % (2 * mask) == mask) draft.send(line.at(v - mask), held);
    if (v % (2 * mask) == 0 && v + mask < n)
      draft.receive(line.at(v + mask),
                    piece(held, {elements(v, v + mask), elements(v + mask, std::min(v + 2 * mask, n))}));
  }
  if (v == 0 && held.buffer == Buffer::scratch) {
    size_t wrap = elements(0, n - problem.root);
    draft.copy(output(problem.count - wrap, wrap), piece(held, {0, wrap}));
    draft.copy(output(0, problem.count - wrap), piece(held, {wrap, problem.count - wrap}));
  }
  if (v == 0 && held.buffer == Buffer::input) draft.copy(all, held);  // alone
  return draft.finish();
}

}  // namespace esp::comm
