// Dissemination barrier: in round k signal rank r + 2^k and wait for the signal of r - 2^k. Messages have zero bytes.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule barrier_dissemination(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  int n = spec.size, r = spec.rank;
  for (int step = 1; step < n; step *= 2, ++builder.round) {
    builder.signal((r + step) % n);
    builder.wait_for_signal(mod(r - step, n));
  }
  return builder.finish();
}

}  // namespace esp::comm
