// 2D mesh: a full ring all-reduce along the rows, then one along the columns. A row has no wrap link: the ring's last
// message travels back along the line, so each link carries one flow per direction.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule all_reduce_mesh2d(const Problem& problem) {
  Draft draft;
  Shape shape = shape_of(problem, 2);
  Region all = output(0, problem.count);
  draft.copy(all, input(0, problem.count));
  for (int axis = 0; axis < 2; ++axis) {
    Line line = along(shape, problem.rank, axis);
    ring_reduce_scatter(draft, line, all);
    ring_all_gather(draft, line, all);
  }
  return draft.finish();
}

}  // namespace esp::comm
