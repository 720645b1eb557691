// Direct gather: the root receives the chunk of one rank after another.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule gather_direct(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  RankSequence sequence = ranks_from(spec, spec.root);
  BufferRegion all = output(0, spec.count);
  size_t own_count = chunk(all, spec.size, spec.rank).count;
  if (sequence.me == 0) builder.copy(chunk(all, spec.size, spec.rank), input(0, own_count));
  for (int v = 1; v < sequence.size(); ++v, ++builder.round) {
    if (sequence.me == v) builder.send(spec.root, input(0, own_count));
    if (sequence.me == 0) builder.receive(sequence.at(v), chunk(all, spec.size, sequence.at(v)));
  }
  return builder.finish();
}

}  // namespace esp::comm
