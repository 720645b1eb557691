// The first half of the ring all-reduce. The input stays as it is, so partial sums wait in two slots of scratch: one is
// being sent while the other receives. Chunk k sums x_{k+1}, …, x_k.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule reduce_scatter_ring(const Problem& problem) {
  Draft draft;
  int n = problem.size, r = problem.rank;
  Region in = input(0, problem.count), own = output(0, chunk_of(problem.count, n, r).count);
  Region slots[2] = {{}, {}};
  for (int s = 0; s < 2 && n > 2; ++s) slots[s] = draft.scratch(chunk_of(problem.count, n, 0).count);
  Region partial = chunk(in, n, r - 1);
  if (n == 1) draft.copy(own, in);
  for (int i = 0; i < n - 1; ++i, ++draft.round) {
    Region mine = chunk(in, n, r - 2 - i);
    Region sum = i == n - 2 ? own : Region{Buffer::scratch, slots[i % 2].offset, mine.count};
    draft.send((r + 1) % n, partial);
    draft.copy(sum, mine);
    draft.receive_reduce(mod(r - 1, n), sum);
    partial = sum;
  }
  return draft.finish();
}

}  // namespace esp::comm
