// Gossip topologies: which replicas each replica receives from, and with which weights, as the rows of the mixing
// matrix W.
//
// Row i lists the replicas that i averages, including itself, in ascending order, and their weights. W must be doubly
// stochastic, so that averaging preserves the mean. The graph must be connected, so that replicas converge. A
// time-varying topology has several matrices, used in a cycle. The functions have no state. A UsageError describes why
// W is invalid.
//
//   topology     receives from                     with weight
//   full         all replicas                      1/n
//   star         replica 0 in the middle           1/n per edge
//   ring         both neighbours                   1/3 each (two replicas: 1/2)
//   grid         up, down, left, right             Metropolis–Hastings
//   exponential  ranks at distance 1, 2, 4 … below 1/(1 + ⌈log2 n⌉) each
//   one_peer     in step k the rank at distance 2^(k mod τ) below, τ = ⌈log2 n⌉: 1/2
//   a file       its edges with Metropolis–Hastings weights, or its weights (graph_file.h)
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace esp::sync {

struct NeighbourWeight {
  int from = 0;
  double weight = 0;
  bool operator==(const NeighbourWeight&) const = default;
};
// [i]: the replicas that replica i averages, with their weights
using MixingMatrix = std::vector<std::vector<NeighbourWeight>>;

struct GossipTopology {
  std::string name;
  std::vector<MixingMatrix> turns;
  const MixingMatrix& at(int64_t step) const { return turns[static_cast<size_t>(step) % turns.size()]; }
  int size() const { return static_cast<int>(turns.front().size()); }
};

struct TopologyRow {
  std::string_view name, help;
  GossipTopology (*make)(int size);
};
std::span<const TopologyRow> topologies();

// `name`: a topology of the table above, or the path of a graph file (contains '.' or '/').
GossipTopology make_topology(const std::string& name, int size);
bool names_graph_file(const std::string& name);

// Metropolis–Hastings weights: w_ij = 1/(1 + max(d_i, d_j)) per edge, and w_ii is the remainder. The matrix is
// symmetric and therefore doubly stochastic. Edges are undirected.
MixingMatrix metropolis_hastings(int size, std::span<const std::pair<int, int>> edges);

// Throws UsageError unless rows are sorted, weights are within [0, 1], rows and columns sum to 1, and every replica is
// reachable within a cycle of matrices.
void check_topology(const GossipTopology& topology);

// Spectral gap 1 − ρ, where ρ = ‖W − 11ᵀ/n‖. For a time-varying topology W is the product of the matrices of a cycle.
double spectral_gap(const GossipTopology& topology);

// The replicas that receive from replica `from`, without itself, in ascending order.
std::vector<int> out_neighbours(const MixingMatrix& mixing, int from);

}  // namespace esp::sync
