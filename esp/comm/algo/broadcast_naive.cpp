// Naive broadcast: the root sends the whole buffer to one rank after another. A reference only.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule broadcast_naive(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  RankSequence sequence = ranks_from(spec, spec.root);
  BufferRegion all = output(0, spec.count);
  if (sequence.me == 0) builder.copy(all, input(0, spec.count));
  for (int v = 1; v < sequence.size(); ++v, ++builder.round) {
    if (sequence.me == 0) builder.send(sequence.at(v), all);
    if (sequence.me == v) builder.receive(spec.root, all);
  }
  return builder.finish();
}

}  // namespace esp::comm
