// Recursive halving and doubling (Rabenseifner 2004). Each rank keeps an interval of p blocks, at first all of them.
// Halving, d = 1, 2, …: exchange with virtual rank v xor d; the rank with bit d set keeps the upper half and sends the
// lower half. Doubling, d = …, 2, 1: send the own interval and receive the adjacent one. The largest message goes to
// the nearest rank.
#include <algorithm>

#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule all_reduce_halving_doubling(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  BufferRegion all = output(0, spec.count);
  builder.copy(all, input(0, spec.count));
  PowerOfTwoFold fold = make_fold(spec.rank, spec.size);
  fold_in(builder, fold, all);
  int p = fold.p, lo = 0, length = p;
  auto blocks = [&](int first) { return chunks(all, p, first, first + length); };
  for (int d = 1; d < p; d *= 2, ++builder.round) {
    length /= 2;
    if (fold.v < 0) continue;
    bool upper = (fold.v & d) != 0;
    int peer = fold.real(fold.v ^ d);
    builder.send(peer, blocks(upper ? lo : lo + length));
    if (upper) lo += length;
    builder.receive_reduce(peer, blocks(lo));
  }
  for (int d = p / 2; d >= 1; d /= 2, ++builder.round) {
    if (fold.v >= 0) {
      int peer = fold.real(fold.v ^ d), theirs = lo ^ length;
      builder.send(peer, blocks(lo));
      builder.receive(peer, blocks(theirs));
      lo = std::min(lo, theirs);
    }
    length *= 2;
  }
  fold_out(builder, fold, all);
  return builder.finish();
}

}  // namespace esp::comm
