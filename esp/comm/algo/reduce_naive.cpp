// Naive reduce: every rank sends its whole vector to the root, which sums in rank order with a single rounding.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule reduce_naive(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  RankSequence sequence = ranks_from(spec, spec.root);
  BufferRegion in = input(0, spec.count);
  std::vector<BufferRegion> terms(static_cast<size_t>(spec.size));
  terms[static_cast<size_t>(spec.root)] = in;
  for (int v = 1; v < sequence.size(); ++v, ++builder.round) {
    if (sequence.me == v) builder.send(spec.root, in);
    if (sequence.me != 0) continue;
    BufferRegion& term = terms[static_cast<size_t>(sequence.at(v))];
    term = builder.scratch(spec.count);
    builder.receive(sequence.at(v), term);
  }
  if (sequence.me == 0 && sequence.size() == 1) builder.copy(output(0, spec.count), in);
  if (sequence.me == 0 && sequence.size() > 1) builder.reduce(output(0, spec.count), terms);
  return builder.finish();
}

}  // namespace esp::comm
