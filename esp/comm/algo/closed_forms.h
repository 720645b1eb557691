// Closed formulas, in exact integers, for the bytes and messages that each rank sends, per algorithm. They are derived
// from the textbook definitions and not from the code, so they can verify the code: formulas_test.cpp compares them
// with the schedules, counted_test.cpp with the transport's counters.
#pragma once

#include <algorithm>
#include <functional>
#include <numeric>
#include <string_view>
#include <vector>

#include "esp/comm/schedule.h"

namespace esp::comm::closed {

using Count = long;

struct SentCount {
  Count elements = 0, messages = 0;
  SentCount operator+(SentCount other) const { return {elements + other.elements, messages + other.messages}; }
};

inline Count wrap(Count a, Count n) {
  return ((a % n) + n) % n;
}
// Number of elements in chunk k when n elements are cut into `parts` chunks.
inline Count part(Count n, Count parts, Count k) {
  return n / parts + (wrap(k, parts) < n % parts ? 1 : 0);
}
// Traffic of one message. An empty message is not sent, so its count is 0.
inline SentCount one(Count elements) {
  return {elements, elements > 0 ? 1 : 0};
}
inline SentCount times(Count k, Count elements) {
  return {k * elements, elements > 0 ? k : 0};
}
// Traffic of a rank that sends every chunk except chunk `left_out`, one message per chunk.
inline SentCount all_but(Count n, Count parts, Count left_out) {
  SentCount sum;
  for (Count k = 0; k < parts; ++k)
    if (k != wrap(left_out, parts)) sum = sum + one(part(n, parts, k));
  return sum;
}
inline Count range(Count n, Count parts, Count first, Count last) {
  Count sum = 0;
  for (Count k = first; k < last; ++k) sum += part(n, parts, k);
  return sum;
}
inline int log2_up(int n) {
  return n <= 1 ? 0 : 1 + log2_up((n + 1) / 2);
}
inline int log2_down(int n) {
  return n <= 1 ? 0 : 1 + log2_down(n / 2);
}
inline int bit_reverse(int v, int bits) {
  return bits == 0 ? 0 : (v % 2) << (bits - 1) | bit_reverse(v / 2, bits - 1);
}
inline Count children(int v, int n) {
  Count sum = 0;
  for (int mask = 1; mask < n; mask *= 2) sum += v % (2 * mask) == 0 && v + mask < n;
  return sum;
}
// End (exclusive) of the range of positions in v's subtree, in a binomial tree over n positions.
inline int subtree_end(int v, int n) {
  return v == 0 ? n : std::min(n, v + (v & -v));
}

inline SentCount ring(Count n, int size, int r) {
  return all_but(n, size, r) + all_but(n, size, r + 1);
}

struct Case {
  int size, r, root;
  Count n;
  std::vector<int> dims;  // grid dimensions
  int segments;
  int v() const { return static_cast<int>(wrap(r - root, size)); }
  int p() const { return 1 << log2_down(size); }
  int rem() const { return size - p(); }
  bool folded_even() const { return r < 2 * rem() && r % 2 == 0; }
  bool folded_odd() const { return r < 2 * rem() && r % 2 == 1; }
  int virtual_rank() const { return r < 2 * rem() ? r / 2 : r - rem(); }
  int fold_rounds() const { return rem() > 0 ? 1 : 0; }
  int coordinate(size_t axis) const {
    int stride = 1;
    for (size_t a = 0; a < axis; ++a) stride *= dims[a];
    return r / stride % dims[axis];
  }
};

inline SentCount halving_doubling(const Case& c) {
  if (c.size == 1) return {};
  if (c.folded_even()) return one(c.n);
  int p = c.p(), bits = log2_down(p), block = bit_reverse(c.virtual_rank(), bits);
  SentCount sum = c.folded_odd() ? one(c.n) : SentCount{};
  for (int j = 0; j < bits; ++j) {
    int length = 1 << j, lo = block / length * length;
    // At this level the rank keeps the interval [lo, lo + length). During halving it sends the neighbouring interval of
    // equal length; during doubling it sends its own interval.
    int neighbour = lo ^ length;
    sum = sum + one(range(c.n, p, neighbour, neighbour + length)) + one(range(c.n, p, lo, lo + length));
  }
  return sum;
}

inline SentCount torus(const Case& c) {
  SentCount sum;
  Count piece = c.n;
  for (size_t axis = 0; axis < c.dims.size(); ++axis) {
    sum = sum + ring(piece, c.dims[axis], c.coordinate(axis));
    piece = part(piece, c.dims[axis], c.coordinate(axis));
  }
  return sum;
}

inline int torus_rounds(const Case& c) {
  int rounds = 0;
  for (int d : c.dims) rounds += 2 * (d - 1);
  return rounds;
}

// Parent of r in each of the two trees, by the paper's definition. Tree A uses the lowest set bit. Tree B is tree A
// mirrored (n even) or shifted by one rank (n odd).
inline int parent_a(int r, int n) {
  int b = r & -r, q = (r - b) | (2 * b);
  return r == 0 ? -1 : q < n ? q : r - b;
}
inline int parent_b(int r, int n) {
  if (n % 2 == 0) return parent_a(n - 1 - r, n) < 0 ? -1 : n - 1 - parent_a(n - 1 - r, n);
  int up = parent_a(static_cast<int>(wrap(r - 1, n)), n);
  return up < 0 ? -1 : (up + 1) % n;
}

inline SentCount double_tree(const Case& c) {
  SentCount sum;
  for (int tree = 0; tree < 2 && c.size > 1; ++tree) {
    auto parent = [&](int r) { return tree == 0 ? parent_a(r, c.size) : parent_b(r, c.size); };
    Count links = parent(c.r) >= 0 ? 1 : 0;
    for (int r = 0; r < c.size; ++r) links += parent(r) == c.r;
    for (int j = 0; j < c.segments; ++j) sum = sum + times(links, part(part(c.n, 2, tree), c.segments, j));
  }
  return sum;
}

inline SentCount hierarchical(const Case& c) {
  int g = c.coordinate(0), m = c.coordinate(1);
  SentCount tree = times(children(g, c.dims[0]), c.n);
  return g == 0 ? tree + ring(c.n, c.dims[1], m) : tree + one(c.n);
}

inline SentCount sequence(const Case& c, bool sends) {
  SentCount sum;
  for (int j = 0; j < c.segments && sends; ++j) sum = sum + one(part(c.n, c.segments, j));
  return sum;
}

// Number of elements in the chunks at positions [first, last). Position 0 is the root; chunk k belongs to real rank k.
inline Count positions(const Case& c, int first, int last) {
  Count sum = 0;
  for (int u = first; u < last; ++u) sum += part(c.n, c.size, u + c.root);
  return sum;
}

inline SentCount scatter_tree(const Case& c) {
  SentCount sum;
  for (int mask = 1; mask < c.size; mask *= 2)
    if (c.v() % (2 * mask) == 0 && c.v() + mask < c.size)
      sum = sum + one(positions(c, c.v() + mask, std::min(c.size, c.v() + 2 * mask)));
  return sum;
}

inline SentCount reduce_scatter_halving(const Case& c) {
  if (c.folded_even()) return one(c.n);
  // First chunk of block v. Block v consists of the chunks of the real ranks that are folded into virtual rank v.
  auto first = [&](int v) { return v < c.rem() ? 2 * v : v + c.rem(); };
  SentCount sum = c.folded_odd() ? one(part(c.n, c.size, c.r - 1)) : SentCount{};
  int v = c.virtual_rank();
  for (int length = c.p() / 2; length >= 1; length /= 2) {
    int other = (v / length * length) ^ length;
    sum = sum + one(range(c.n, c.size, first(other), first(other + length)));
  }
  return sum;
}

inline SentCount all_gather_doubling(const Case& c) {
  SentCount sum;
  for (int d = 1; d < c.size; d *= 2) sum = sum + one(range(c.n, c.size, c.r / d * d, c.r / d * d + d));
  return sum;
}

inline SentCount all_gather_bruck(const Case& c) {
  SentCount sum;
  for (int d = 1; d < c.size; d *= 2) {
    Count held = 0;
    for (int j = 0; j < std::min(d, c.size - d); ++j) held += part(c.n, c.size, c.r + j);
    sum = sum + one(held);
  }
  return sum;
}

inline SentCount all_to_all_bruck(const Case& c) {
  SentCount sum;
  for (int bit = 1; bit < c.size; bit *= 2) {
    Count slots = 0;
    for (int j = 0; j < c.size; ++j) slots += (j & bit) != 0;
    sum = sum + one(slots * c.n / c.size);
  }
  return sum;
}

inline SentCount all_to_all_hierarchical(const Case& c) {
  Count g = c.dims[0], m = c.dims[1], block = c.n / c.size;
  return times(g - 1, m * block) + times(m - 1, g * block);
}

struct Formula {
  Op op;
  std::string_view name;
  std::function<SentCount(const Case&)> sent;
  std::function<int(const Case&)> rounds;
  int num_axes = -1;  // number of grid axes; -1: the algorithm uses no grid
};

inline SentCount bidirectional(const Case& c) {
  return ring(part(c.n, 2, 0), c.size, c.r) + ring(part(c.n, 2, 1), c.size, c.size - 1 - c.r);
}
inline SentCount shift0(const Case& c) {
  return all_but(c.n, c.size, c.r + 1) + all_but(c.n, c.size, c.r + 2);
}
inline SentCount from_root_only(const Case& c, SentCount sent) {
  return c.v() == 0 ? sent : SentCount{};
}
inline int once(const Case& c) {
  return c.size - 1;
}
inline int twice(const Case& c) {
  return 2 * (c.size - 1);
}
inline int logs(const Case& c) {
  return log2_up(c.size);
}
inline int pipeline(const Case& c) {
  return c.size == 1 ? 0 : c.size - 2 + c.segments;
}

inline const std::vector<Formula>& formulas() {
  static const std::vector<Formula> kFormulas = {
      {Op::all_reduce, "ring", [](const Case& c) { return ring(c.n, c.size, c.r); }, twice},
      {Op::all_reduce, "ring_shift0", shift0, twice},
      {Op::all_reduce, "ring_bidirectional", bidirectional, twice},
      {Op::all_reduce, "naive", [](const Case& c) { return times(c.r == 0 ? c.size - 1 : 1, c.n); }, twice},
      {Op::all_reduce, "direct",
       [](const Case& c) { return all_but(c.n, c.size, c.r) + times(c.size - 1, part(c.n, c.size, c.r)); }, twice},
      {Op::all_reduce, "recursive_doubling",
       [](const Case& c) { return times(c.folded_even() ? 1 : log2_down(c.p()) + (c.folded_odd() ? 1 : 0), c.n); },
       [](const Case& c) { return log2_down(c.p()) + 2 * c.fold_rounds(); }},
      {Op::all_reduce, "halving_doubling", halving_doubling,
       [](const Case& c) { return 2 * log2_down(c.p()) + 2 * c.fold_rounds(); }},
      {Op::all_reduce, "tree", [](const Case& c) { return times(children(c.r, c.size) + (c.r != 0), c.n); },
       [](const Case& c) { return 2 * log2_up(c.size); }},
      {Op::all_reduce, "double_tree", double_tree,
       [](const Case& c) { return c.size == 1 ? 0 : 2 * log2_up(c.size) + c.segments - 1; }},
      {Op::all_reduce, "hierarchical", hierarchical,
       [](const Case& c) { return 2 * log2_up(c.dims[0]) + 2 * (c.dims[1] - 1); }, 2},
      {Op::all_reduce, "torus2d", torus, torus_rounds, 2},
      {Op::all_reduce, "mesh2d",
       [](const Case& c) { return ring(c.n, c.dims[0], c.coordinate(0)) + ring(c.n, c.dims[1], c.coordinate(1)); },
       torus_rounds, 2},
      {Op::all_reduce, "torus3d", torus, torus_rounds, 3},
      {Op::all_reduce, "torus", torus, torus_rounds, 0},
      {Op::broadcast, "tree", [](const Case& c) { return times(children(c.v(), c.size), c.n); }, logs},
      {Op::broadcast, "ring_pipelined", [](const Case& c) { return sequence(c, c.v() < c.size - 1); }, pipeline},
      {Op::broadcast, "scatter_allgather",
       [](const Case& c) {
         Case by_position = c;  // in this algorithm chunk v belongs to position v
         by_position.root = 0;
         by_position.r = c.v();
         return scatter_tree(by_position) + all_but(c.n, c.size, c.v() + 1);
       },
       [](const Case& c) { return log2_up(c.size) + c.size - 1; }},
      {Op::broadcast, "naive", [](const Case& c) { return from_root_only(c, times(c.size - 1, c.n)); }, once},
      {Op::reduce, "tree", [](const Case& c) { return times(c.v() != 0, c.n); }, logs},
      {Op::reduce, "ring_pipelined", [](const Case& c) { return sequence(c, c.v() != 0); }, pipeline},
      {Op::reduce, "naive", [](const Case& c) { return times(c.v() != 0, c.n); }, once},
      {Op::reduce_scatter, "ring", [](const Case& c) { return all_but(c.n, c.size, c.r); }, once},
      {Op::reduce_scatter, "direct", [](const Case& c) { return all_but(c.n, c.size, c.r); }, once},
      {Op::reduce_scatter, "halving_doubling", reduce_scatter_halving,
       [](const Case& c) { return log2_down(c.p()) + 2 * c.fold_rounds(); }},
      {Op::all_gather, "ring", [](const Case& c) { return all_but(c.n, c.size, c.r + 1); }, once},
      {Op::all_gather, "bruck", all_gather_bruck, logs},
      {Op::all_gather, "recursive_doubling", all_gather_doubling, logs},
      {Op::all_gather, "pairwise", [](const Case& c) { return times(c.size - 1, part(c.n, c.size, c.r)); }, once},
      {Op::all_to_all, "pairwise", [](const Case& c) { return times(c.size - 1, c.n / c.size); }, once},
      {Op::all_to_all, "bruck", all_to_all_bruck, logs},
      {Op::all_to_all, "hierarchical", all_to_all_hierarchical, [](const Case& c) { return c.dims[0] + c.dims[1] - 2; },
       2},
      {Op::gather, "tree",
       [](const Case& c) { return one(c.v() == 0 ? 0 : positions(c, c.v(), subtree_end(c.v(), c.size))); }, logs},
      {Op::gather, "direct", [](const Case& c) { return one(c.v() == 0 ? 0 : part(c.n, c.size, c.r)); }, once},
      {Op::scatter, "tree", scatter_tree, logs},
      {Op::scatter, "direct", [](const Case& c) { return from_root_only(c, all_but(c.n, c.size, c.r)); }, once},
      {Op::barrier, "dissemination",
       [](const Case& c) {
         return SentCount{0, log2_up(c.size)};
       },
       logs},
  };
  return kFormulas;
}

inline const Formula* formula_of(const AlgorithmRow& row) {
  for (const Formula& formula : formulas())
    if (formula.op == row.op && formula.name == row.name) return &formula;
  return nullptr;
}

// The grid with the smallest sum of dimensions, found by exhaustive search.
inline std::vector<int> even_grid(int size, int num_axes) {
  std::vector<int> best;
  if (num_axes == 0) {
    for (int f = 2; size > 1;)
      if (size % f == 0) {
        best.insert(best.begin(), f);
        size /= f;
      } else {
        ++f;
      }
    return best.empty() ? std::vector<int>{1} : best;
  }
  for (int a = 1; a <= size; ++a)
    for (int b = 1; b <= a; ++b) {
      int c = size / (a * b);
      if (a * b * c != size || c > b || (num_axes == 2 && c != 1)) continue;
      std::vector<int> dims = {a, b};
      if (num_axes == 3) dims.push_back(c);
      if (best.empty() || std::accumulate(dims.begin(), dims.end(), 0) < std::accumulate(best.begin(), best.end(), 0))
        best = dims;
    }
  return best;
}

}  // namespace esp::comm::closed
