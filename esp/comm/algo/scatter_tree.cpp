// Binomial scatter, the mirror image of the binomial gather: position v forwards the blocks of each of its subtrees.
#include <algorithm>

#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule scatter_tree(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  RankSequence sequence = ranks_from(spec, spec.root);
  int v = sequence.me, n = sequence.size();
  BufferRegion in = input(0, spec.count);
  auto elements = [&](int first, int last) {
    size_t sum = 0;
    for (int b = first; b < last; ++b) sum += chunk(in, n, sequence.at(b)).count;
    return sum;
  };
  BufferRegion own = output(0, elements(v, v + 1));
  int subtree = 1;
  while (v % (2 * subtree) == 0 && v + subtree < n) subtree *= 2;
  int last = std::min(v + subtree, n);
  BufferRegion held = v == 0 && spec.root == 0 ? in : last - v > 1 ? builder.scratch(elements(v, last)) : own;
  // The root orders its blocks by position, so that the blocks of each subtree are contiguous.
  if (v == 0 && held.buffer == Buffer::scratch) {
    size_t wrap = elements(0, n - spec.root);
    builder.copy(piece(held, {0, wrap}), piece(in, {spec.count - wrap, wrap}));
    builder.copy(piece(held, {wrap, spec.count - wrap}), piece(in, {0, spec.count - wrap}));
  }
  for (int mask = 1 << ceil_log2(n) >> 1; mask > 0; mask /= 2, ++builder.round) {
    if (v % (2 * mask) == 0 && v + mask < n)
      builder.send(sequence.at(v + mask),
                   piece(held, {elements(v, v + mask), elements(v + mask, std::min(v + 2 * mask, n))}));
    if (v % (2 * mask) == mask) builder.receive(sequence.at(v - mask), held);
  }
  if (held.buffer != Buffer::output) builder.copy(own, piece(held, {0, own.count}));
  if (n == 1 && held.buffer == Buffer::output) builder.copy(own, in);
  return builder.finish();
}

}  // namespace esp::comm
