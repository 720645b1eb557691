// Recursive halving without the doubling phase, d = p/2, …, 1, so that virtual rank v ends with block v. If the size is
// not a power of two, each even rank of the first 2·rem ranks first folds into its right neighbour. The block of this
// neighbour has two chunks, 2v and 2v + 1. Blocks stay in order; at the end the neighbour sends chunk 2v back.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule reduce_scatter_halving_doubling(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  int n = spec.size, r = spec.rank;
  PowerOfTwoFold fold = make_fold(r, n);
  BufferRegion in = input(0, spec.count), own = output(0, chunk_of(spec.count, n, r).count);
  if (n == 1) builder.copy(own, in);
  // First chunk of block v.
  auto first = [&](int v) { return v < fold.rem ? 2 * v : v + fold.rem; };
  auto blocks = [&](const BufferRegion& data, int lo, int hi) { return chunks(data, n, first(lo), first(hi)); };
  BufferRegion sum = fold.v >= 0 && n > 1 ? builder.scratch(spec.count) : in;
  if (fold.partner >= 0 && fold.v >= 0) builder.copy(sum, in);
  fold_in(builder, fold, sum);
  int lo = 0, hi = fold.p;
  for (int d = fold.p / 2; d >= 1; d /= 2, ++builder.round) {
    if (fold.v < 0) continue;
    bool fresh = d == fold.p / 2 && fold.partner < 0;  // no sum has been computed yet, so the input is sent
    bool upper = (fold.v & d) != 0;
    int middle = lo + d, peer = fold.real(fold.v ^ d);
    builder.send(peer, upper ? blocks(fresh ? in : sum, lo, middle) : blocks(fresh ? in : sum, middle, hi));
    (upper ? lo : hi) = middle;
    if (fresh) builder.copy(blocks(sum, lo, hi), blocks(in, lo, hi));
    builder.receive_reduce(peer, blocks(sum, lo, hi));
  }
  if (fold.partner >= 0 && fold.v >= 0) builder.send(fold.partner, chunk(sum, n, fold.partner));
  if (fold.partner >= 0 && fold.v < 0) builder.receive(fold.partner, own);
  builder.round += fold.rounds();
  if (fold.v >= 0 && n > 1) builder.copy(own, chunk(sum, n, r));
  return builder.finish();
}

}  // namespace esp::comm
