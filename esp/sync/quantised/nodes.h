// The ranks as a grid: G ranks on each of M nodes, rank r = node·G + local. What the two-stage collectives need to keep
// traffic off the slow network.
//
// Both groups are owned. Every member makes the same calls in the same order on each of them.
#pragma once

#include <memory>

#include "esp/comm/communicator.h"

namespace esp::sync {

struct Nodes {
  std::unique_ptr<comm::Communicator> inside;  // the ranks of this node, by local number; null: this rank is alone
  std::unique_ptr<comm::Communicator> across;  // those of equal local number, by node; null: this rank is alone

  int local() const { return inside ? inside->rank() : 0; }
  int ranks_per_node() const { return inside ? inside->size() : 1; }
  int node() const { return across ? across->rank() : 0; }
  int num_nodes() const { return across ? across->size() : 1; }
  int size() const { return num_nodes() * ranks_per_node(); }
  int rank() const { return rank_of(node(), local()); }
  int rank_of(int node, int local) const { return node * ranks_per_node() + local; }
};

// Collective; ranks must be numbered node by node. null: this rank is alone. UsageError when the number of ranks on a
// node does not divide them.
Nodes split_by_node(comm::Communicator* ranks, int ranks_per_node);

}  // namespace esp::sync
