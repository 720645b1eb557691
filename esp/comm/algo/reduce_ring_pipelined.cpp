// The pipelined broadcast in reverse: segments travel from the far end of the chain to the root, and each rank adds its
// values. The order is x_{root} + (x_{root+1} + (… + x_{root-1})). Takes K - 2 + s rounds.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"
#include "esp/comm/algo/segments.h"

namespace esp::comm {

Schedule reduce_ring_pipelined(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  RankSequence sequence = ranks_from(spec, spec.root);
  int v = sequence.me, n = sequence.size(), s = pipeline_segments(spec);
  BufferRegion in = input(0, spec.count), sum = output(0, spec.count);
  if (v != 0) sum = v == n - 1 ? in : builder.scratch(spec.count);
  if (sum.buffer != Buffer::input) builder.copy(sum, in);
  for (int j = 0; j < s; ++j) {
    builder.round = n - 1 - v + j;
    if (v > 0) builder.send(sequence.at(v - 1), chunk(sum, s, j));
    builder.round = n - 2 - v + j;
    if (v + 1 < n) builder.receive_reduce(sequence.at(v + 1), chunk(sum, s, j));
  }
  builder.round = n > 1 ? n - 2 + s : 0;
  return builder.finish();
}

}  // namespace esp::comm
