// Binomial scatter, the mirror image of the gather: position v passes on the blocks of each subtree below it.
#include <algorithm>

#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule scatter_tree(const Problem& problem) {
  Draft draft;
  Line line = everyone_from(problem, problem.root);
  int v = line.me, n = line.size();
  Region in = input(0, problem.count);
  auto elements = [&](int first, int last) {
    size_t sum = 0;
    for (int b = first; b < last; ++b) sum += chunk(in, n, line.at(b)).count;
    return sum;
  };
  Region own = output(0, elements(v, v + 1));
  int subtree = 1;
  while (v % (2 * subtree) == 0 && v + subtree < n) subtree *= 2;
  int last = std::min(v + subtree, n);
  Region held = v == 0 && problem.root == 0 ? in : last - v > 1 ? draft.scratch(elements(v, last)) : own;
  if (v == 0 && held.buffer == Buffer::scratch) {  // in order of positions, so that a subtree's blocks are one run
    size_t wrap = elements(0, n - problem.root);
    draft.copy(piece(held, {0, wrap}), piece(in, {problem.count - wrap, wrap}));
    draft.copy(piece(held, {wrap, problem.count - wrap}), piece(in, {0, problem.count - wrap}));
  }
  for (int mask = 1 << ceil_log2(n) >> 1; mask > 0; mask /= 2, ++draft.round) {
    if (v % (2 * mask) == 0 && v + mask < n)
      draft.send(line.at(v + mask),
                 piece(held, {elements(v, v + mask), elements(v + mask, std::min(v + 2 * mask, n))}));
    if (v % (2 * mask) == mask) draft.receive(line.at(v - mask), held);
  }
  if (held.buffer != Buffer::output) draft.copy(own, piece(held, {0, own.count}));
  if (n == 1 && held.buffer == Buffer::output) draft.copy(own, in);
  return draft.finish();
}

}  // namespace esp::comm
