#include "esp/comm/algo/phases.h"

namespace esp::comm {

void direct_reduce_scatter(ScheduleBuilder& builder, const RankSequence& sequence, const BufferRegion& from,
                           const BufferRegion& into) {
  int n = sequence.size();
  std::vector<BufferRegion> terms(static_cast<size_t>(n));
  terms[static_cast<size_t>(sequence.me)] = chunk(from, n, sequence.me);
  for (int k = 1; k < n; ++k, ++builder.round) {
    BufferRegion& term = terms[static_cast<size_t>(mod(sequence.me - k, n))];
    term = builder.scratch(into.count);
    builder.send(sequence.at(sequence.me + k), chunk(from, n, sequence.me + k));
    builder.receive(sequence.at(sequence.me - k), term);
  }
  // The reduction gets the round number of the last exchange, because that exchange delivers its last operand.
  if (n > 1) --builder.round;
  if (n > 1)
    builder.reduce(into, terms);
  else
    builder.copy(into, terms[0]);
  if (n > 1) ++builder.round;
}

}  // namespace esp::comm
