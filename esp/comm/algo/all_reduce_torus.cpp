// Torus of any number of axes: reduce-scatter along each axis on the piece the axis before left, all-gather in reverse.
// The bytes telescope to 2(N-1)/N·S in 2·Σ(d-1) rounds. torus2d and torus3d are this with two and three axes.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {
namespace {

Schedule torus(const Problem& problem, int num_axes) {
  Draft draft;
  Shape shape = shape_of(problem, num_axes);
  int axes = static_cast<int>(shape.dims.size());
  std::vector<Region> pieces{output(0, problem.count)};
  draft.copy(pieces[0], input(0, problem.count));
  for (int axis = 0; axis < axes; ++axis) {
    Line line = along(shape, problem.rank, axis);
    ring_reduce_scatter(draft, line, pieces.back());
    pieces.push_back(chunk(pieces.back(), line.size(), line.me));
  }
  for (int axis = axes - 1; axis >= 0; --axis)
    ring_all_gather(draft, along(shape, problem.rank, axis), pieces[static_cast<size_t>(axis)]);
  return draft.finish();
}

}  // namespace

Schedule all_reduce_torus(const Problem& problem) {
  return torus(problem, 0);
}
Schedule all_reduce_torus2d(const Problem& problem) {
  return torus(problem, 2);
}
Schedule all_reduce_torus3d(const Problem& problem) {
  return torus(problem, 3);
}

}  // namespace esp::comm
