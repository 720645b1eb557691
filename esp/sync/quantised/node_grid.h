// The ranks as a grid: G ranks on each of M nodes, rank r = node·G + local. Two-stage collectives use the grid to
// reduce traffic on the slow network between nodes.
//
// The grid owns both communicators. All members of a communicator make the same calls in the same order.
#pragma once

#include <memory>

#include "esp/comm/communicator.h"

namespace esp::sync {

struct NodeGrid {
  // the ranks of this node, by local index; null if the grid is a single rank
  std::unique_ptr<comm::Communicator> intra_node;
  // the ranks with this local index, by node; null if the grid is a single rank
  std::unique_ptr<comm::Communicator> inter_node;

  int local() const { return intra_node ? intra_node->rank() : 0; }
  int ranks_per_node() const { return intra_node ? intra_node->size() : 1; }
  int node() const { return inter_node ? inter_node->rank() : 0; }
  int num_nodes() const { return inter_node ? inter_node->size() : 1; }
  int size() const { return num_nodes() * ranks_per_node(); }
  int rank() const { return rank_of(node(), local()); }
  int rank_of(int node, int local) const { return node * ranks_per_node() + local; }
};

// Creates the grid; collective. Ranks must be numbered node by node; `ranks` is null for a single rank. UsageError
// unless ranks_per_node divides the number of ranks.
NodeGrid split_by_node(comm::Communicator* ranks, int ranks_per_node);

}  // namespace esp::sync
