// The reduce-scatter half of the ring all-reduce. The input must not change, so partial sums use two scratch slots: one
// is sent while the other receives. Chunk k is summed in the order x_{k+1}, x_{k+2}, …, x_k.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule reduce_scatter_ring(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  int n = spec.size, r = spec.rank;
  BufferRegion in = input(0, spec.count), own = output(0, chunk_of(spec.count, n, r).count);
  BufferRegion slots[2] = {{}, {}};
  for (int s = 0; s < 2 && n > 2; ++s) slots[s] = builder.scratch(chunk_of(spec.count, n, 0).count);
  BufferRegion partial = chunk(in, n, r - 1);
  if (n == 1) builder.copy(own, in);
  for (int i = 0; i < n - 1; ++i, ++builder.round) {
    BufferRegion mine = chunk(in, n, r - 2 - i);
    BufferRegion sum = i == n - 2 ? own : BufferRegion{Buffer::scratch, slots[i % 2].offset, mine.count};
    builder.send((r + 1) % n, partial);
    builder.copy(sum, mine);
    builder.receive_reduce(mod(r - 1, n), sum);
    partial = sum;
  }
  return builder.finish();
}

}  // namespace esp::comm
