// Recursive-doubling all-gather: for d = 1, 2, 4, … exchange all collected chunks with rank r xor d. The size must be a
// power of two.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule all_gather_recursive_doubling(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  int n = spec.size, r = spec.rank;
  BufferRegion all = output(0, spec.count), own = chunk(all, n, r);
  builder.copy(own, input(0, own.count));
  for (int d = 1; d < n; d *= 2, ++builder.round) {
    int mine = r / d * d, theirs = mine ^ d;
    builder.send(r ^ d, chunks(all, n, mine, mine + d));
    builder.receive(r ^ d, chunks(all, n, theirs, theirs + d));
  }
  return builder.finish();
}

}  // namespace esp::comm
