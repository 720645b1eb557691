// Pipelined broadcast along a chain of K ranks that starts at the root, with the message cut into s segments. In round
// j the rank at position i forwards segment j - i. Takes K - 2 + s rounds of one segment each.
#include <algorithm>

#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"
#include "esp/comm/algo/segments.h"

namespace esp::comm {

int pipeline_segments(const CollectiveSpec& spec) {
  if (spec.segments > 0) return spec.segments;
  return static_cast<int>(std::clamp<size_t>(spec.count / 16384, 1, 256));
}

Schedule broadcast_ring_pipelined(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  RankSequence sequence = ranks_from(spec, spec.root);
  int v = sequence.me, n = sequence.size(), s = pipeline_segments(spec);
  BufferRegion all = output(0, spec.count);
  if (v == 0) builder.copy(all, input(0, spec.count));
  for (int j = 0; j < s; ++j) {
    builder.round = v + j;
    if (v + 1 < n) builder.send(sequence.at(v + 1), chunk(all, s, j));
    builder.round = v - 1 + j;
    if (v > 0) builder.receive(sequence.at(v - 1), chunk(all, s, j));
  }
  builder.round = n > 1 ? n - 2 + s : 0;
  return builder.finish();
}

}  // namespace esp::comm
