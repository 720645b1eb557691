// Binomial gather. Position v counts from the root. For mask = 1, 2, 4, … a position v with that bit set sends the
// blocks [v, v + mask) to position v - mask and is finished. Blocks travel in order of position. If the collected
// blocks wrap past rank N-1, the root copies them to its output in rank order at the end.
#include <algorithm>

#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule gather_tree(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  RankSequence sequence = ranks_from(spec, spec.root);
  int v = sequence.me, n = sequence.size();
  BufferRegion all = output(0, spec.count);
  // Number of elements in the blocks of positions [first, last).
  auto elements = [&](int first, int last) {
    size_t sum = 0;
    for (int b = first; b < last; ++b) sum += chunk(all, n, sequence.at(b)).count;
    return sum;
  };
  size_t own_count = elements(v, v + 1);
  int subtree = 1;
  while (v % (2 * subtree) == 0 && v + subtree < n) subtree *= 2;
  int last = std::min(v + subtree, n);
  // Where this position collects blocks. The root (if it is rank 0) collects in the output, other interior positions in
  // scratch; a leaf sends from its input.
  BufferRegion held = v == 0 && spec.root == 0 ? all
                      : last - v > 1           ? builder.scratch(elements(v, last))
                                               : input(0, own_count);
  if (held.buffer != Buffer::input) builder.copy(piece(held, {0, own_count}), input(0, own_count));
  for (int mask = 1; mask < n; mask *= 2, ++builder.round) {
    if (v % (2 * mask) == mask) builder.send(sequence.at(v - mask), held);
    if (v % (2 * mask) == 0 && v + mask < n)
      builder.receive(sequence.at(v + mask),
                      piece(held, {elements(v, v + mask), elements(v + mask, std::min(v + 2 * mask, n))}));
  }
  if (v == 0 && held.buffer == Buffer::scratch) {
    size_t wrap = elements(0, n - spec.root);
    builder.copy(output(spec.count - wrap, wrap), piece(held, {0, wrap}));
    builder.copy(output(0, spec.count - wrap), piece(held, {wrap, spec.count - wrap}));
  }
  if (v == 0 && held.buffer == Buffer::input) builder.copy(all, held);  // group of one rank
  return builder.finish();
}

}  // namespace esp::comm
