// A stage has two edges, so communicators are created in two rounds: even edges, then odd edges. A ring with an odd
// number of stages needs a third round for its last edge.
#include "esp/parallel/pp/edges.h"

namespace esp::parallel {
namespace {

constexpr int kNone = -1;

int round_of(int edge, int stages) {
  return edge == stages - 1 && stages % 2 == 1 ? 2 : edge % 2;
}

}  // namespace

PipeEdges::PipeEdges(comm::Communicator* stages, bool ring) {
  const int size = stages ? stages->size() : 1;
  if (size == 1) return;
  const int here = stages->rank(), last = ring ? size : size - 1;  // last: number of edges
  const int after = here < last ? here : kNone;
  const int before = here > 0 ? here - 1 : ring ? size - 1 : kNone;
  for (int round = 0; round < (ring && size % 2 == 1 ? 3 : 2); ++round) {
    const bool to_after = after != kNone && round_of(after, size) == round;
    const bool to_before = before != kNone && round_of(before, size) == round;
    const int edge = to_after ? after : to_before ? before : kNone;
    auto activations = stages->split(edge, to_after ? 0 : 1);
    auto gradients = stages->split(edge, to_after ? 0 : 1);
    if (to_after) {
      activations_out_ = std::move(activations);
      gradients_in_ = std::move(gradients);
    } else if (to_before) {
      activations_in_ = std::move(activations);
      gradients_out_ = std::move(gradients);
    }
  }
}

StageEdges PipeEdges::stage_edges() const {
  return {activations_in_.get(), gradients_out_.get(), activations_out_.get(), gradients_in_.get()};
}

}  // namespace esp::parallel
