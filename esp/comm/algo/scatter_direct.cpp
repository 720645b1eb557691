// Direct scatter: the root sends each rank its chunk, one after another.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule scatter_direct(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  RankSequence sequence = ranks_from(spec, spec.root);
  BufferRegion in = input(0, spec.count), mine = chunk(in, spec.size, spec.rank);
  if (sequence.me == 0) builder.copy(output(0, mine.count), mine);
  for (int v = 1; v < sequence.size(); ++v, ++builder.round) {
    if (sequence.me == 0) builder.send(sequence.at(v), chunk(in, spec.size, sequence.at(v)));
    if (sequence.me == v) builder.receive(spec.root, output(0, mine.count));
  }
  return builder.finish();
}

}  // namespace esp::comm
