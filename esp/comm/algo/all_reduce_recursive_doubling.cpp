// Recursive doubling (butterfly): for d = 1, 2, 4, … exchange the whole vector with virtual rank v xor d and add. Both
// ranks compute the sum, with the lower virtual rank as first operand, so all ranks hold the same bits, including NaN
// payloads.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule all_reduce_recursive_doubling(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  BufferRegion all = output(0, spec.count);
  builder.copy(all, input(0, spec.count));
  PowerOfTwoFold fold = make_fold(spec.rank, spec.size);
  fold_in(builder, fold, all);
  BufferRegion other = fold.v >= 0 && fold.p > 1 ? builder.scratch(spec.count) : BufferRegion{};
  for (int d = 1; d < fold.p; d *= 2, ++builder.round) {
    if (fold.v < 0) continue;
    int peer = fold.real(fold.v ^ d);
    builder.send(peer, all);
    builder.receive(peer, other);
    builder.reduce(all, (fold.v & d) == 0 ? std::vector{all, other} : std::vector{other, all});
  }
  fold_out(builder, fold, all);
  return builder.finish();
}

}  // namespace esp::comm
