#include "esp/sync/gossip/gossip_topology.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/base/rng.h"
#include "esp/base/table.h"
#include "esp/obs/file.h"
#include "esp/sync/gossip/graph_file.h"

namespace esp::sync {
namespace {

constexpr double kSlack = 1e-9;  // tolerance of a row sum: weights in graph files have few digits
constexpr size_t kMaxGraphBytes = size_t{64} << 20;

using Edge = std::pair<int, int>;

int log2_up(int n) {
  int bits = 0;
  while ((1 << bits) < n) ++bits;
  return bits;
}

// Builds the mixing matrix: `fill` writes the weights of row i, by replica.
MixingMatrix mixing_of(int size, const std::function<void(int i, std::map<int, double>& row)>& fill) {
  MixingMatrix rows(static_cast<size_t>(size));
  for (int i = 0; i < size; ++i) {
    std::map<int, double> row;
    fill(i, row);
    for (const auto& [from, weight] : row) rows[static_cast<size_t>(i)].push_back({from, weight});
  }
  return rows;
}

GossipTopology full(int n) {
  return {"full", {mixing_of(n, [n](int, auto& row) {
            for (int j = 0; j < n; ++j) row[j] = 1.0 / n;
          })}};
}

GossipTopology star(int n) {
  return {"star", {mixing_of(n, [n](int i, auto& row) {
            if (i == 0) {
              for (int j = 0; j < n; ++j) row[j] = 1.0 / n;
            } else {
              row[0] = 1.0 / n;
              row[i] = 1 - 1.0 / n;
            }
          })}};
}

GossipTopology ring(int n) {
  return {"ring", {mixing_of(n, [n](int i, auto& row) {
            for (const int j : {i, (i + 1) % n, (i + n - 1) % n}) row[j] = n < 3 ? 1.0 / n : 1.0 / 3;
          })}};
}

GossipTopology grid(int n) {
  int rows = 1;
  for (int r = 1; r * r <= n; ++r)
    if (n % r == 0) rows = r;
  const int cols = n / rows;
  std::vector<Edge> edges;
  for (int i = 0; i < n; ++i) {
    if (i % cols + 1 < cols) edges.emplace_back(i, i + 1);
    if (i + cols < n) edges.emplace_back(i, i + cols);
  }
  return {"grid", {metropolis_hastings(n, edges)}};
}

GossipTopology exponential(int n) {
  const int bits = log2_up(n);
  return {"exponential", {mixing_of(n, [&](int i, auto& row) {
            row[i] = 1.0 / (bits + 1);
            for (int k = 0; k < bits; ++k) row[(i + n - (1 << k)) % n] = 1.0 / (bits + 1);
          })}};
}

GossipTopology one_peer(int n) {
  GossipTopology topology{"one_peer", {}};
  for (int k = 0; k < std::max(1, log2_up(n)); ++k)
    topology.turns.push_back(mixing_of(n, [&](int i, auto& row) {
      row[i] += n == 1 ? 1 : 0.5;
      if (n > 1) row[(i + n - (1 << k)) % n] += 0.5;
    }));
  return topology;
}

constexpr TopologyRow kTopologies[] = {
    {"full", "averages with all replicas", full},
    {"star", "replica 0 averages with all others, and each of the others only with replica 0", star},
    {"ring", "averages with both neighbours on a ring", ring},
    {"grid", "averages with the neighbours above, below, left and right on a grid", grid},
    {"exponential", "receives from the ranks 1, 2, 4, … below", exponential},
    {"one_peer", "receives from one of the ranks of exponential per step, in turn", one_peer},
};

[[noreturn]] void fail(const GossipTopology& topology, const std::string& why) {
  throw UsageError(fmt::format("sync.topology = {}: {}", topology.name, why));
}

void check_turn(const GossipTopology& topology, const MixingMatrix& mixing) {
  const int n = topology.size();
  std::vector<double> columns(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) {
    double sum = 0;
    int last = -1;
    for (const NeighbourWeight& one : mixing[static_cast<size_t>(i)]) {
      if (one.from <= last || one.from >= n)
        fail(topology,
             fmt::format("row {}: got node {}; expected nodes from 0 to {} in ascending order", i, one.from, n - 1));
      last = one.from;
      if (!(one.weight >= 0 && one.weight <= 1 + kSlack))
        fail(topology, fmt::format("weight of edge {} {}: got {}; expected 0 to 1", i, one.from, one.weight));
      sum += one.weight;
      columns[static_cast<size_t>(one.from)] += one.weight;
    }
    if (std::abs(sum - 1) > kSlack)
      fail(topology, fmt::format("incoming weights of node {}: got the sum {}; expected 1. Remove the weights to use "
                                 "Metropolis–Hastings weights.",
                                 i, sum));
  }
  for (int j = 0; j < n; ++j)
    if (std::abs(columns[static_cast<size_t>(j)] - 1) > kSlack)
      fail(topology, fmt::format("outgoing weights of node {}: got the sum {}; expected 1, which preserves the mean. "
                                 "Remove the weights to use Metropolis–Hastings weights.",
                                 j, columns[static_cast<size_t>(j)]));
}

// For a doubly stochastic W it is enough to check from node 0: if every node is reachable from node 0, every node is
// reachable from every other.
void check_connected(const GossipTopology& topology) {
  const int n = topology.size();
  std::vector<bool> reached(static_cast<size_t>(n));
  std::vector<int> waiting = {0};
  reached[0] = true;
  while (!waiting.empty()) {
    const int at = waiting.back();
    waiting.pop_back();
    for (const MixingMatrix& mixing : topology.turns)
      for (const NeighbourWeight& one : mixing[static_cast<size_t>(at)])
        if (one.weight > 0 && !reached[static_cast<size_t>(one.from)]) {
          reached[static_cast<size_t>(one.from)] = true;
          waiting.push_back(one.from);
        }
  }
  const auto lost = std::find(reached.begin(), reached.end(), false);
  if (lost != reached.end())
    fail(topology,
         fmt::format("the graph is not connected: node {} is not reachable from node 0. Add an edge between the parts.",
                     lost - reached.begin()));
}

using Vector = std::vector<double>;

Vector times(const MixingMatrix& mixing, const Vector& x, bool transposed) {
  Vector y(x.size());
  for (size_t i = 0; i < mixing.size(); ++i)
    for (const NeighbourWeight& one : mixing[i]) {
      const auto j = static_cast<size_t>(one.from);
      if (transposed)
        y[j] += one.weight * x[i];
      else
        y[i] += one.weight * x[j];
    }
  return y;
}

void remove_mean(Vector& x) {
  double mean = 0;
  for (const double value : x) mean += value;
  mean /= static_cast<double>(x.size());
  for (double& value : x) value -= mean;
}

double norm_of(const Vector& x) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  return std::sqrt(sum);
}

}  // namespace

std::span<const TopologyRow> topologies() {
  return kTopologies;
}

MixingMatrix metropolis_hastings(int size, std::span<const Edge> edges) {
  std::vector<int> degrees(static_cast<size_t>(size));
  for (const auto& [a, b] : edges) {
    ++degrees[static_cast<size_t>(a)];
    ++degrees[static_cast<size_t>(b)];
  }
  std::vector<std::map<int, double>> rows(static_cast<size_t>(size));
  for (const auto& [a, b] : edges) {
    const double weight = 1.0 / (1 + std::max(degrees[static_cast<size_t>(a)], degrees[static_cast<size_t>(b)]));
    rows[static_cast<size_t>(a)][b] = weight;
    rows[static_cast<size_t>(b)][a] = weight;
  }
  return mixing_of(size, [&](int i, auto& row) {
    row = rows[static_cast<size_t>(i)];
    double rest = 1;
    for (const auto& [from, weight] : row) rest -= weight;
    row[i] = rest;
  });
}

bool names_graph_file(const std::string& name) {
  return name.find_first_of("./") != std::string::npos;
}

GossipTopology make_topology(const std::string& name, int size) {
  if (!names_graph_file(name)) return find_row("sync.topology", kTopologies, name).make(size);
  std::string text;
  try {
    text = obs::read_whole_file(name, kMaxGraphBytes);
  } catch (const IoError& error) {
    throw IoError(fmt::format("sync.topology: {}", error.what()));
  }
  GossipTopology topology = parse_graph(text, name);
  if (topology.size() != size)
    fail(topology, fmt::format("the graph has {} nodes; expected {}, the number of replicas.", topology.size(), size));
  check_topology(topology);
  return topology;
}

void check_topology(const GossipTopology& topology) {
  for (const MixingMatrix& mixing : topology.turns) check_turn(topology, mixing);
  check_connected(topology);
}

// Power iteration on AᵀA for vectors with mean 0, where A is the product of the matrices of a cycle.
double spectral_gap(const GossipTopology& topology) {
  const auto n = static_cast<size_t>(topology.size());
  if (n == 1) return 1;
  Vector x(n);
  for (size_t i = 0; i < n; ++i) x[i] = random_unit(7, 11, i) - 0.5;
  double before = -1, square = 0;
  for (int round = 0; round < 100'000 && std::abs(square - before) > 1e-16; ++round) {
    remove_mean(x);
    const double length = norm_of(x);
    if (length == 0) return 1;
    for (double& value : x) value /= length;
    Vector y = x;
    for (const MixingMatrix& mixing : topology.turns) y = times(mixing, y, false);
    remove_mean(y);
    before = square;
    square = norm_of(y) * norm_of(y);
    if (square < 1e-28) return 1;  // ρ² is 0; the rest is rounding error
    for (size_t turn = topology.turns.size(); turn-- > 0;) y = times(topology.turns[turn], y, true);
    x = std::move(y);
  }
  return 1 - std::sqrt(square);
}

std::vector<int> out_neighbours(const MixingMatrix& mixing, int from) {
  std::vector<int> all;
  for (size_t i = 0; i < mixing.size(); ++i)
    for (const NeighbourWeight& one : mixing[i])
      if (one.from == from && one.weight > 0 && static_cast<int>(i) != from) all.push_back(static_cast<int>(i));
  return all;
}

}  // namespace esp::sync
