// Torus all-reduce with any number of axes. Reduce-scatter runs along each axis in turn, on the chunk that the previous
// axis left; all-gather runs in reverse order. A rank sends 2(N-1)/N·S bytes in 2·Σ(d-1) rounds, with d the length of
// each axis. torus2d and torus3d are the same algorithm with two and three axes.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {
namespace {

Schedule torus(const CollectiveSpec& spec, int num_axes) {
  ScheduleBuilder builder;
  RankGrid shape = grid_for(spec, num_axes);
  int axes = static_cast<int>(shape.dims.size());
  std::vector<BufferRegion> pieces{output(0, spec.count)};
  builder.copy(pieces[0], input(0, spec.count));
  for (int axis = 0; axis < axes; ++axis) {
    RankSequence sequence = ranks_along(shape, spec.rank, axis);
    ring_reduce_scatter(builder, sequence, pieces.back());
    pieces.push_back(chunk(pieces.back(), sequence.size(), sequence.me));
  }
  for (int axis = axes - 1; axis >= 0; --axis)
    ring_all_gather(builder, ranks_along(shape, spec.rank, axis), pieces[static_cast<size_t>(axis)]);
  return builder.finish();
}

}  // namespace

Schedule all_reduce_torus(const CollectiveSpec& spec) {
  return torus(spec, 0);
}
Schedule all_reduce_torus2d(const CollectiveSpec& spec) {
  return torus(spec, 2);
}
Schedule all_reduce_torus3d(const CollectiveSpec& spec) {
  return torus(spec, 3);
}

}  // namespace esp::comm
