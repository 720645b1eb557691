// The ranks as a grid: G ranks on each of M nodes, rank r = node·G + local. Two-stage collectives use it to reduce
// traffic on the slow network.
//
// Both groups are owned. Every member makes the same calls in the same order on each of them.
#pragma once

#include <memory>

#include "esp/comm/communicator.h"

namespace esp::sync {

struct NodeGrid {
  std::unique_ptr<comm::Communicator> inside;  // the ranks of this node, by local index; null: one rank
  std::unique_ptr<comm::Communicator> across;  // those with the same local index, by node; null: one rank

  int local() const { return inside ? inside->rank() : 0; }
  int ranks_per_node() const { return inside ? inside->size() : 1; }
  int node() const { return across ? across->rank() : 0; }
  int num_nodes() const { return across ? across->size() : 1; }
  int size() const { return num_nodes() * ranks_per_node(); }
  int rank() const { return rank_of(node(), local()); }
  int rank_of(int node, int local) const { return node * ranks_per_node() + local; }
};

// Collective; ranks must be numbered node by node. null: one rank. UsageError when the number of ranks on a node does
// not divide the number of ranks.
NodeGrid split_by_node(comm::Communicator* ranks, int ranks_per_node);

}  // namespace esp::sync
