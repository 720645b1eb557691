#include "esp/sync/gossip/topology.h"

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

constexpr double kSlack = 1e-9;  // of a row's sum: weights are written with so many digits
constexpr size_t kMostGraphBytes = size_t{64} << 20;

using Edge = std::pair<int, int>;

int log2_up(int n) {
  int bits = 0;
  while ((1 << bits) < n) ++bits;
  return bits;
}

// Of weights that may name a copy twice.
Mixing mixing_of(int size, const std::function<void(int i, std::map<int, double>& row)>& fill) {
  Mixing rows(static_cast<size_t>(size));
  for (int i = 0; i < size; ++i) {
    std::map<int, double> row;
    fill(i, row);
    for (const auto& [from, weight] : row) rows[static_cast<size_t>(i)].push_back({from, weight});
  }
  return rows;
}

Topology full(int n) {
  return {"full", {mixing_of(n, [n](int, auto& row) {
            for (int j = 0; j < n; ++j) row[j] = 1.0 / n;
          })}};
}

Topology star(int n) {
  return {"star", {mixing_of(n, [n](int i, auto& row) {
            if (i == 0) {
              for (int j = 0; j < n; ++j) row[j] = 1.0 / n;
            } else {
              row[0] = 1.0 / n;
              row[i] = 1 - 1.0 / n;
            }
          })}};
}

Topology ring(int n) {
  return {"ring", {mixing_of(n, [n](int i, auto& row) {
            for (const int j : {i, (i + 1) % n, (i + n - 1) % n}) row[j] = n < 3 ? 1.0 / n : 1.0 / 3;
          })}};
}

Topology grid(int n) {
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

Topology exponential(int n) {
  const int bits = log2_up(n);
  return {"exponential", {mixing_of(n, [&](int i, auto& row) {
            row[i] = 1.0 / (bits + 1);
            for (int k = 0; k < bits; ++k) row[(i + n - (1 << k)) % n] = 1.0 / (bits + 1);
          })}};
}

Topology one_peer(int n) {
  Topology topology{"one_peer", {}};
  for (int k = 0; k < std::max(1, log2_up(n)); ++k)
    topology.turns.push_back(mixing_of(n, [&](int i, auto& row) {
      row[i] += n == 1 ? 1 : 0.5;
      if (n > 1) row[(i + n - (1 << k)) % n] += 0.5;
    }));
  return topology;
}

constexpr TopologyRow kTopologies[] = {
    {"full", "everybody", full},
    {"star", "copy 0 and all others", star},
    {"ring", "both neighbours", ring},
    {"grid", "up, down, left, right", grid},
    {"exponential", "those 1, 2, 4 … before", exponential},
    {"one_peer", "one of those, another every step", one_peer},
};

[[noreturn]] void refuse(const Topology& topology, const std::string& why) {
  throw UsageError(fmt::format("sync.topology = {}: {}", topology.name, why));
}

void check_turn(const Topology& topology, const Mixing& mixing) {
  const int n = topology.size();
  std::vector<double> columns(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) {
    double sum = 0;
    int last = -1;
    for (const Heard& one : mixing[static_cast<size_t>(i)]) {
      if (one.from <= last || one.from >= n) refuse(topology, fmt::format("row {} is out of order", i));
      last = one.from;
      if (!(one.weight >= 0 && one.weight <= 1 + kSlack))
        refuse(topology,
               fmt::format("node {} hears {} with weight {}; weights are within 0 and 1", i, one.from, one.weight));
      sum += one.weight;
      columns[static_cast<size_t>(one.from)] += one.weight;
    }
    if (std::abs(sum - 1) > kSlack)
      refuse(topology, fmt::format("what node {} hears has weights that sum to {}, not 1: averages would drift; "
                                   "leave weights out for Metropolis–Hastings ones",
                                   i, sum));
  }
  for (int j = 0; j < n; ++j)
    if (std::abs(columns[static_cast<size_t>(j)] - 1) > kSlack)
      refuse(topology, fmt::format("node {} is heard with weights that sum to {}, not 1: the mean would not be kept; "
                                   "leave weights out for Metropolis–Hastings ones",
                                   j, columns[static_cast<size_t>(j)]));
}

// A doubly stochastic matrix that reaches everybody from node 0 reaches everybody from everywhere.
void check_connected(const Topology& topology) {
  const int n = topology.size();
  std::vector<bool> reached(static_cast<size_t>(n));
  std::vector<int> waiting = {0};
  reached[0] = true;
  while (!waiting.empty()) {
    const int at = waiting.back();
    waiting.pop_back();
    for (const Mixing& mixing : topology.turns)
      for (const Heard& one : mixing[static_cast<size_t>(at)])
        if (one.weight > 0 && !reached[static_cast<size_t>(one.from)]) {
          reached[static_cast<size_t>(one.from)] = true;
          waiting.push_back(one.from);
        }
  }
  const auto lost = std::find(reached.begin(), reached.end(), false);
  if (lost != reached.end())
    refuse(topology, fmt::format("no way leads from node 0 to node {}: they would never agree; add an edge between "
                                 "the parts",
                                 lost - reached.begin()));
}

using Vector = std::vector<double>;

Vector times(const Mixing& mixing, const Vector& x, bool transposed) {
  Vector y(x.size());
  for (size_t i = 0; i < mixing.size(); ++i)
    for (const Heard& one : mixing[i]) {
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

Mixing metropolis_hastings(int size, std::span<const Edge> edges) {
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

Topology make_topology(const std::string& name, int size) {
  if (!names_graph_file(name)) return find_row("sync.topology", kTopologies, name).make(size);
  Topology topology = parse_graph(obs::read_whole_file(name, kMostGraphBytes), name);
  if (topology.size() != size)
    refuse(topology, fmt::format("the graph has {} nodes, and {} copies are to be joined", topology.size(), size));
  check_topology(topology);
  return topology;
}

void check_topology(const Topology& topology) {
  for (const Mixing& mixing : topology.turns) check_turn(topology, mixing);
  check_connected(topology);
}

// Power iteration on AᵀA, where A is the product of the turns on vectors without mean.
double spectral_gap(const Topology& topology) {
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
    for (const Mixing& mixing : topology.turns) y = times(mixing, y, false);
    remove_mean(y);
    before = square;
    square = norm_of(y) * norm_of(y);
    if (square < 1e-28) return 1;  // nothing but rounding is left
    for (size_t turn = topology.turns.size(); turn-- > 0;) y = times(topology.turns[turn], y, true);
    x = std::move(y);
  }
  return 1 - std::sqrt(square);
}

std::vector<int> listeners(const Mixing& mixing, int from) {
  std::vector<int> all;
  for (size_t i = 0; i < mixing.size(); ++i)
    for (const Heard& one : mixing[i])
      if (one.from == from && one.weight > 0 && static_cast<int>(i) != from) all.push_back(static_cast<int>(i));
  return all;
}

}  // namespace esp::sync
