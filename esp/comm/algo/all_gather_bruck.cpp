// Bruck et al. 1997: for d = 1, 2, 4, … send the first min(d, N-d) held blocks to rank r - d, append what r + d sends.
// Blocks stand in the order r, r + 1, … until they are rotated into place at the end. Any size, ceil(log2 N) rounds.
#include <algorithm>

#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule all_gather_bruck(const Problem& problem) {
  Draft draft;
  int n = problem.size, r = problem.rank;
  Region all = output(0, problem.count), own = chunk(all, n, r);
  if (n == 1) {
    draft.copy(own, input(0, own.count));
    return draft.finish();
  }
  Region held = draft.scratch(problem.count);
  // Where block r + j starts among the held ones.
  auto start = [&](int j) {
    size_t at = 0;
    for (int b = 0; b < j; ++b) at += chunk(all, n, r + b).count;
    return at;
  };
  draft.copy(piece(held, {0, own.count}), input(0, own.count));
  for (int d = 1; d < n; d *= 2, ++draft.round) {
    int blocks = std::min(d, n - d);
    draft.send(mod(r - d, n), piece(held, {0, start(blocks)}));
    draft.receive((r + d) % n, piece(held, {start(d), start(d + blocks) - start(d)}));
  }
  size_t wrap = start(n - r);  // blocks r … N-1 lie before it, 0 … r-1 after
  draft.copy(output(own.offset, wrap), piece(held, {0, wrap}));
  draft.copy(output(0, problem.count - wrap), piece(held, {wrap, problem.count - wrap}));
  return draft.finish();
}

}  // namespace esp::comm
