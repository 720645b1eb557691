// Who hears whom, and with what weight: the mixing matrix W of decentralised methods, as rows.
//
// Row i lists the copies that i averages, its own among them, in ascending order, and their weights; W must be doubly
// stochastic, so that averaging keeps the mean, and the graph connected, so that copies agree in the end. One that
// changes from step to step has several matrices, taken in turn. Pure functions; UsageError says what is wrong with W.
//
//   full         everybody                         1/n
//   star         copy 0 in the middle              1/n along the rays
//   ring         both neighbours                   1/3 each (two copies: 1/2)
//   grid         up, down, left, right             Metropolis–Hastings
//   exponential  those 1, 2, 4 … before            1/(1 + ⌈log2 n⌉) each
//   one_peer     in step k the one 2^(k mod τ) before, τ = ⌈log2 n⌉: 1/2
//   a file       its edges with Metropolis–Hastings weights, or its weights (graph_file.h)
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace esp::sync {

struct Heard {
  int from = 0;
  double weight = 0;
  bool operator==(const Heard&) const = default;
};
using Mixing = std::vector<std::vector<Heard>>;  // rows

struct Topology {
  std::string name;
  std::vector<Mixing> turns;
  const Mixing& at(int64_t step) const { return turns[static_cast<size_t>(step) % turns.size()]; }
  int size() const { return static_cast<int>(turns.front().size()); }
};

struct TopologyRow {
  std::string_view name, help;
  Topology (*make)(int size);
};
std::span<const TopologyRow> topologies();

// A name of the table, or the path of a graph file (with a '.' or a '/' in it).
Topology make_topology(const std::string& name, int size);
bool names_graph_file(const std::string& name);

// w_ij = 1/(1 + max(d_i, d_j)), the rest stays: symmetric, so doubly stochastic. Edges are undirected.
Mixing metropolis_hastings(int size, std::span<const std::pair<int, int>> edges);

// Rows in order, weights within [0, 1], rows and columns that sum to one, every copy reached over the turns.
void check_topology(const Topology& topology);

// 1 − ρ, where ρ = ‖W − 11ᵀ/n‖: of all turns together, where there are several.
double spectral_gap(const Topology& topology);

// The copies that hear `from`, in order.
std::vector<int> listeners(const Mixing& mixing, int from);

}  // namespace esp::sync
