#include "esp/sync/quantised/node_grid.h"

#include <fmt/format.h>

#include "esp/base/error.h"

namespace esp::sync {

NodeGrid split_by_node(comm::Communicator* ranks, int ranks_per_node) {
  const int size = ranks ? ranks->size() : 1;
  if (ranks_per_node < 1 || size % ranks_per_node != 0)
    throw UsageError(fmt::format("ranks per node: got {}; expected a divisor of the {} ranks. Set comm.nodes.",
                                 ranks_per_node, size));
  NodeGrid nodes;
  if (!ranks) return nodes;
  nodes.intra_node = ranks->split(ranks->rank() / ranks_per_node, ranks->rank());
  nodes.inter_node = ranks->split(ranks->rank() % ranks_per_node, ranks->rank());
  return nodes;
}

}  // namespace esp::sync
