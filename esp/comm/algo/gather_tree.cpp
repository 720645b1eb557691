// Binomial gather: for mask = 1, 2, 4, … position v with that bit sends the blocks [v, v + mask) to v - mask and stops.
// Blocks travel in the order of positions; the root puts a run that wraps past rank N-1 in place at the end.
#include <algorithm>

#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule gather_tree(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  RankSequence sequence = ranks_from(spec, spec.root);
  int v = sequence.me, n = sequence.size();
  BufferRegion all = output(0, spec.count);
  // Elements in blocks [first, last) of positions.
  auto elements = [&](int first, int last) {
    size_t sum = 0;
    for (int b = first; b < last; ++b) sum += chunk(all, n, sequence.at(b)).count;
    return sum;
  };
  size_t own_count = elements(v, v + 1);
  int subtree = 1;
  while (v % (2 * subtree) == 0 && v + subtree < n) subtree *= 2;
  int last = std::min(v + subtree, n);
  // The root's blocks go directly to the output unless their run wraps; others collect in scratch.
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
  if (v == 0 && held.buffer == Buffer::input) builder.copy(all, held);  // alone
  return builder.finish();
}

}  // namespace esp::comm
