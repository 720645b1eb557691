// Recursive halving alone, d = p/2, …, 1, so that virtual rank v ends with block v. For other sizes than 2^k the even
// ranks of the first 2·rem fold into their right neighbours, whose block is then two chunks, 2v and 2v + 1; the blocks
// stay in order, and at the end the neighbour hands chunk 2v back.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule reduce_scatter_halving_doubling(const Problem& problem) {
  Draft draft;
  int n = problem.size, r = problem.rank;
  Fold fold = fold_of(r, n);
  Region in = input(0, problem.count), own = output(0, chunk_of(problem.count, n, r).count);
  if (n == 1) draft.copy(own, in);
  // First chunk of block v.
  auto first = [&](int v) { return v < fold.rem ? 2 * v : v + fold.rem; };
  auto blocks = [&](const Region& data, int lo, int hi) { return chunks(data, n, first(lo), first(hi)); };
  Region sum = fold.v >= 0 && n > 1 ? draft.scratch(problem.count) : in;
  if (fold.partner >= 0 && fold.v >= 0) draft.copy(sum, in);
  fold_in(draft, fold, sum);
  int lo = 0, hi = fold.p;
  for (int d = fold.p / 2; d >= 1; d /= 2, ++draft.round) {
    if (fold.v < 0) continue;
    bool fresh = d == fold.p / 2 && fold.partner < 0;  // nothing summed yet: send from the input
    bool upper = (fold.v & d) != 0;
    int middle = lo + d, peer = fold.real(fold.v ^ d);
    draft.send(peer, upper ? blocks(fresh ? in : sum, lo, middle) : blocks(fresh ? in : sum, middle, hi));
    (upper ? lo : hi) = middle;
    if (fresh) draft.copy(blocks(sum, lo, hi), blocks(in, lo, hi));
    draft.receive_reduce(peer, blocks(sum, lo, hi));
  }
  if (fold.partner >= 0 && fold.v >= 0) draft.send(fold.partner, chunk(sum, n, fold.partner));
  if (fold.partner >= 0 && fold.v < 0) draft.receive(fold.partner, own);
  draft.round += fold.rounds();
  if (fold.v >= 0 && n > 1) draft.copy(own, chunk(sum, n, r));
  return draft.finish();
}

}  // namespace esp::comm
