// Bruck all-gather (Bruck et al. 1997). For d = 1, 2, 4, …: send the first min(d, N-d) collected blocks to rank r - d
// and append the blocks received from r + d. Blocks are stored in the order r, r + 1, … and rotated into rank order at
// the end. Works for any size, in ceil(log2 N) rounds.
#include <algorithm>

#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule all_gather_bruck(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  int n = spec.size, r = spec.rank;
  BufferRegion all = output(0, spec.count), own = chunk(all, n, r);
  if (n == 1) {
    builder.copy(own, input(0, own.count));
    return builder.finish();
  }
  BufferRegion held = builder.scratch(spec.count);
  // Offset of the block of rank r + j within the collected blocks.
  auto start = [&](int j) {
    size_t at = 0;
    for (int b = 0; b < j; ++b) at += chunk(all, n, r + b).count;
    return at;
  };
  builder.copy(piece(held, {0, own.count}), input(0, own.count));
  for (int d = 1; d < n; d *= 2, ++builder.round) {
    int blocks = std::min(d, n - d);
    builder.send(mod(r - d, n), piece(held, {0, start(blocks)}));
    builder.receive((r + d) % n, piece(held, {start(d), start(d + blocks) - start(d)}));
  }
  size_t wrap = start(n - r);  // blocks r … N-1 are before this offset, blocks 0 … r-1 after it
  builder.copy(output(own.offset, wrap), piece(held, {0, wrap}));
  builder.copy(output(0, spec.count - wrap), piece(held, {wrap, spec.count - wrap}));
  return builder.finish();
}

}  // namespace esp::comm
