// Naive all-reduce: gather to rank 0, sum there in rank order, send the sum to every rank. A reference only: all
// traffic passes through rank 0.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule all_reduce_naive(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  BufferRegion in = input(0, spec.count), out = output(0, spec.count);
  if (spec.size == 1) builder.copy(out, in);
  std::vector<BufferRegion> terms{in};
  for (int r = 1; r < spec.size; ++r, ++builder.round) {
    if (spec.rank == r) builder.send(0, in);
    if (spec.rank == 0) {
      terms.push_back(builder.scratch(spec.count));
      builder.receive(r, terms.back());
    }
  }
  // One reduce action over all terms, so the sum is rounded only once.
  if (spec.rank == 0 && spec.size > 1) builder.reduce(out, terms);
  for (int r = 1; r < spec.size; ++r, ++builder.round) {
    if (spec.rank == 0) builder.send(r, out);
    if (spec.rank == r) builder.receive(0, out);
  }
  return builder.finish();
}

}  // namespace esp::comm
