// Gossip topologies: which replica receives from which, with which weight, as the rows of the mixing matrix W.
//
// Row i lists the replicas that i averages, including itself, in ascending order, and their weights. W must be doubly
// stochastic, so that averaging preserves the mean, and the graph connected, so that replicas converge. A time-varying
// topology has several matrices, used in a cycle. Pure functions; UsageError says what is wrong with W.
//
//   full         all                               1/n
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
using MixingMatrix = std::vector<std::vector<NeighbourWeight>>;  // rows

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

// A name of the table, or the path of a graph file (contains '.' or '/').
GossipTopology make_topology(const std::string& name, int size);
bool names_graph_file(const std::string& name);

// w_ij = 1/(1 + max(d_i, d_j)), the rest is w_ii: symmetric, so doubly stochastic. Edges are undirected.
MixingMatrix metropolis_hastings(int size, std::span<const std::pair<int, int>> edges);

// Rows sorted, weights within [0, 1], rows and columns that sum to one, every replica reachable over a cycle.
void check_topology(const GossipTopology& topology);

// Spectral gap 1 − ρ, where ρ = ‖W − 11ᵀ/n‖; of the product of a cycle, where there are several matrices.
double spectral_gap(const GossipTopology& topology);

// The replicas that receive from `from`, in order.
std::vector<int> listeners(const MixingMatrix& mixing, int from);

}  // namespace esp::sync
