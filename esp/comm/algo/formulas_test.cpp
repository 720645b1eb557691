// Bytes, messages and rounds of every algorithm against closed formulas, written here a second time from the textbook
// definitions rather than from the code: exact integers, for every rank of 1 to 17 ranks and 27.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>

#include "esp/comm/algo/table.h"
#include "esp/comm/simulate.h"
#include "esp/comm/validate.h"

namespace esp::comm {
namespace {

using Count = long;

struct Sent {
  Count elements = 0, messages = 0;
  Sent operator+(Sent other) const { return {elements + other.elements, messages + other.messages}; }
};

Count wrap(Count a, Count n) {
  return ((a % n) + n) % n;
}
// Size of chunk k of n elements in `parts`.
Count part(Count n, Count parts, Count k) {
  return n / parts + (wrap(k, parts) < n % parts ? 1 : 0);
}
// As one message, which is not sent when empty.
Sent one(Count elements) {
  return {elements, elements > 0 ? 1 : 0};
}
Sent times(Count k, Count elements) {
  return {k * elements, elements > 0 ? k : 0};
}
// All chunks but one.
Sent all_but(Count n, Count parts, Count left_out) {
  Sent sum;
  for (Count k = 0; k < parts; ++k)
    if (k != wrap(left_out, parts)) sum = sum + one(part(n, parts, k));
  return sum;
}
Count range(Count n, Count parts, Count first, Count last) {
  Count sum = 0;
  for (Count k = first; k < last; ++k) sum += part(n, parts, k);
  return sum;
}
int log2_up(int n) {
  return n <= 1 ? 0 : 1 + log2_up((n + 1) / 2);
}
int log2_down(int n) {
  return n <= 1 ? 0 : 1 + log2_down(n / 2);
}
int bit_reverse(int v, int bits) {
  return bits == 0 ? 0 : (v % 2) << (bits - 1) | bit_reverse(v / 2, bits - 1);
}
Count children(int v, int n) {
  Count sum = 0;
  for (int mask = 1; mask < n; mask *= 2) sum += v % (2 * mask) == 0 && v + mask < n;
  return sum;
}
// One past the last position below v in a binomial tree over n.
int subtree_end(int v, int n) {
  return v == 0 ? n : std::min(n, v + (v & -v));
}

Sent ring(Count n, int size, int r) {
  return all_but(n, size, r) + all_but(n, size, r + 1);
}

struct Case {
  int size, r, root;
  Count n;
  std::vector<int> dims;  // of grids
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

Sent halving_doubling(const Case& c) {
  if (c.size == 1) return {};
  if (c.folded_even()) return one(c.n);
  int p = c.p(), bits = log2_down(p), block = bit_reverse(c.virtual_rank(), bits);
  Sent sum = c.folded_odd() ? one(c.n) : Sent{};
  for (int j = 0; j < bits; ++j) {
    int length = 1 << j, lo = block / length * length;
    // What this level keeps is [lo, lo + length); its neighbour of equal length was sent on the way down, and what is
    // kept is sent on the way up.
    int neighbour = lo ^ length;
    sum = sum + one(range(c.n, p, neighbour, neighbour + length)) + one(range(c.n, p, lo, lo + length));
  }
  return sum;
}

Sent torus(const Case& c) {
  Sent sum;
  Count piece = c.n;
  for (size_t axis = 0; axis < c.dims.size(); ++axis) {
    sum = sum + ring(piece, c.dims[axis], c.coordinate(axis));
    piece = part(piece, c.dims[axis], c.coordinate(axis));
  }
  return sum;
}

int torus_rounds(const Case& c) {
  int rounds = 0;
  for (int d : c.dims) rounds += 2 * (d - 1);
  return rounds;
}

// Parents in the two trees, as the definition has them: A by the lowest set bit, B mirrored or shifted.
int parent_a(int r, int n) {
  int b = r & -r, q = (r - b) | (2 * b);
  return r == 0 ? -1 : q < n ? q : r - b;
}
int parent_b(int r, int n) {
  if (n % 2 == 0) return parent_a(n - 1 - r, n) < 0 ? -1 : n - 1 - parent_a(n - 1 - r, n);
  int up = parent_a(static_cast<int>(wrap(r - 1, n)), n);
  return up < 0 ? -1 : (up + 1) % n;
}

Sent double_tree(const Case& c) {
  Sent sum;
  for (int tree = 0; tree < 2 && c.size > 1; ++tree) {
    auto parent = [&](int r) { return tree == 0 ? parent_a(r, c.size) : parent_b(r, c.size); };
    Count links = parent(c.r) >= 0 ? 1 : 0;
    for (int r = 0; r < c.size; ++r) links += parent(r) == c.r;
    for (int j = 0; j < c.segments; ++j) sum = sum + times(links, part(part(c.n, 2, tree), c.segments, j));
  }
  return sum;
}

Sent hierarchical(const Case& c) {
  int g = c.coordinate(0), m = c.coordinate(1);
  Sent tree = times(children(g, c.dims[0]), c.n);
  return g == 0 ? tree + ring(c.n, c.dims[1], m) : tree + one(c.n);
}

Sent line(const Case& c, bool sends) {
  Sent sum;
  for (int j = 0; j < c.segments && sends; ++j) sum = sum + one(part(c.n, c.segments, j));
  return sum;
}

// Chunks travel by position from the root on, but are those of the real ranks.
Count positions(const Case& c, int first, int last) {
  Count sum = 0;
  for (int u = first; u < last; ++u) sum += part(c.n, c.size, u + c.root);
  return sum;
}

Sent scatter_tree(const Case& c) {
  Sent sum;
  for (int mask = 1; mask < c.size; mask *= 2)
    if (c.v() % (2 * mask) == 0 && c.v() + mask < c.size)
      sum = sum + one(positions(c, c.v() + mask, std::min(c.size, c.v() + 2 * mask)));
  return sum;
}

Sent reduce_scatter_halving(const Case& c) {
  if (c.folded_even()) return one(c.n);
  // Block v is the chunks of the real ranks it stands for.
  auto first = [&](int v) { return v < c.rem() ? 2 * v : v + c.rem(); };
  Sent sum = c.folded_odd() ? one(part(c.n, c.size, c.r - 1)) : Sent{};
  int v = c.virtual_rank();
  for (int length = c.p() / 2; length >= 1; length /= 2) {
    int other = (v / length * length) ^ length;
    sum = sum + one(range(c.n, c.size, first(other), first(other + length)));
  }
  return sum;
}

Sent all_gather_doubling(const Case& c) {
  Sent sum;
  for (int d = 1; d < c.size; d *= 2) sum = sum + one(range(c.n, c.size, c.r / d * d, c.r / d * d + d));
  return sum;
}

Sent all_gather_bruck(const Case& c) {
  Sent sum;
  for (int d = 1; d < c.size; d *= 2) {
    Count held = 0;
    for (int j = 0; j < std::min(d, c.size - d); ++j) held += part(c.n, c.size, c.r + j);
    sum = sum + one(held);
  }
  return sum;
}

Sent all_to_all_bruck(const Case& c) {
  Sent sum;
  for (int bit = 1; bit < c.size; bit *= 2) {
    Count slots = 0;
    for (int j = 0; j < c.size; ++j) slots += (j & bit) != 0;
    sum = sum + one(slots * c.n / c.size);
  }
  return sum;
}

Sent all_to_all_hierarchical(const Case& c) {
  Count g = c.dims[0], m = c.dims[1], block = c.n / c.size;
  return times(g - 1, m * block) + times(m - 1, g * block);
}

struct Formula {
  Op op;
  std::string_view name;
  std::function<Sent(const Case&)> sent;
  std::function<int(const Case&)> rounds;
  int num_axes = -1;  // of grids
};

Sent bidirectional(const Case& c) {
  return ring(part(c.n, 2, 0), c.size, c.r) + ring(part(c.n, 2, 1), c.size, c.size - 1 - c.r);
}
Sent shift0(const Case& c) {
  return all_but(c.n, c.size, c.r + 1) + all_but(c.n, c.size, c.r + 2);
}
Sent from_root_only(const Case& c, Sent sent) {
  return c.v() == 0 ? sent : Sent{};
}
int once(const Case& c) {
  return c.size - 1;
}
int twice(const Case& c) {
  return 2 * (c.size - 1);
}
int logs(const Case& c) {
  return log2_up(c.size);
}
int pipeline(const Case& c) {
  return c.size == 1 ? 0 : c.size - 2 + c.segments;
}

const std::vector<Formula>& formulas() {
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
      {Op::broadcast, "ring_pipelined", [](const Case& c) { return line(c, c.v() < c.size - 1); }, pipeline},
      {Op::broadcast, "scatter_allgather",
       [](const Case& c) {
         Case by_position = c;  // chunk v belongs to position v here
         by_position.root = 0;
         by_position.r = c.v();
         return scatter_tree(by_position) + all_but(c.n, c.size, c.v() + 1);
       },
       [](const Case& c) { return log2_up(c.size) + c.size - 1; }},
      {Op::broadcast, "naive", [](const Case& c) { return from_root_only(c, times(c.size - 1, c.n)); }, once},
      {Op::reduce, "tree", [](const Case& c) { return times(c.v() != 0, c.n); }, logs},
      {Op::reduce, "ring_pipelined", [](const Case& c) { return line(c, c.v() != 0); }, pipeline},
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
         return Sent{0, log2_up(c.size)};
       },
       logs},
  };
  return kFormulas;
}

const Formula* formula_of(const AlgorithmRow& row) {
  for (const Formula& formula : formulas())
    if (formula.op == row.op && formula.name == row.name) return &formula;
  return nullptr;
}

// The grid of the least sum, by trying all.
std::vector<int> even_grid(int size, int num_axes) {
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

void expect_formula(const AlgorithmRow& row, const Formula& formula, Problem problem, Count segments) {
  if (row.applies && !row.applies(problem).empty()) return;
  auto problems = for_every_rank(problem);
  auto schedules = build_all(row, problems);
  Simulated simulated = simulate(schedules, 1, net::LinkCost{1, 1});
  Case c{
      problem.size, 0, problem.root, static_cast<Count>(problem.count), problem.shape.dims, static_cast<int>(segments)};
  if (formula.num_axes >= 0 && c.dims.empty()) c.dims = even_grid(problem.size, formula.num_axes);
  std::string what = fmt::format("{} {} size {} count {} root {}", name_of(row.op), row.name, problem.size,
                                 problem.count, problem.root);
  EXPECT_EQ(simulated.num_rounds, formula.rounds(c)) << what;
  for (; c.r < c.size; ++c.r) {
    Sent want = formula.sent(c);
    const SimulatedRank& got = simulated.ranks[static_cast<size_t>(c.r)];
    EXPECT_EQ(static_cast<Count>(got.bytes_sent), want.elements) << what << " rank " << c.r;
    EXPECT_EQ(static_cast<Count>(got.messages_sent), want.messages) << what << " rank " << c.r;
  }
}

TEST(Formulas, GiveBytesMessagesAndRoundsOfEveryRank) {
  for (const AlgorithmRow& row : algorithms()) {
    if (row.op == Op::all_to_all_v) continue;
    const Formula* formula = formula_of(row);
    ASSERT_NE(formula, nullptr) << name_of(row.op) << " " << row.name << " has no formula here";
    bool rooted = row.op == Op::broadcast || row.op == Op::reduce || row.op == Op::gather || row.op == Op::scatter;
    for (int size = 1; size <= 27; size += size == 17 ? 10 : 1)
      for (size_t count : {size_t{0}, size_t{1}, size_t(size) - 1, size_t(size), size_t(size) + 1, size_t{1000},
                           size_t(size) * size_t(size) * 20})
        for (int root = 0; root < (rooted ? size : 1); ++root) {
          Problem problem;
          problem.op = row.op;
          problem.size = size;
          problem.count = row.op == Op::barrier ? 0 : count;
          problem.root = root;
          expect_formula(row, *formula, problem, 1);  // so short a buffer is one segment
          problem.segments = 4;
          if (row.name.ends_with("pipelined") || row.name == "double_tree") expect_formula(row, *formula, problem, 4);
        }
  }
}

TEST(Formulas, HoldOnGivenGrids) {
  for (const auto& dims : std::vector<std::vector<int>>{{4, 2}, {2, 4}, {3, 5}, {3, 3, 3}, {2, 2, 2, 2}, {2, 3, 4}})
    for (const AlgorithmRow& row : algorithms()) {
      const Formula* formula = formula_of(row);
      if (!formula || formula->num_axes < 0) continue;
      if (formula->num_axes != 0 && formula->num_axes != static_cast<int>(dims.size())) continue;
      Problem problem;
      problem.op = row.op;
      problem.shape.dims = dims;
      problem.size = std::accumulate(dims.begin(), dims.end(), 1, std::multiplies<>());
      problem.count = static_cast<size_t>(problem.size) * 10;
      expect_formula(row, *formula, problem, 1);
    }
}

// The figures people quote, with equal chunks.
TEST(Formulas, GiveTheQuotedTotals) {
  for (int size : {2, 3, 4, 8, 12, 16, 27}) {
    Problem problem;
    problem.size = size;
    problem.count = static_cast<size_t>(size) * 1000;
    auto sent = [&](std::string_view name) {
      const AlgorithmRow& row = find_algorithm(Op::all_reduce, name);
      return simulate(build_all(row, for_every_rank(problem)), 4, net::LinkCost{}).ranks;
    };
    uint64_t s = problem.count * 4, n = static_cast<uint64_t>(size), total = 0;
    for (auto name : {"ring", "ring_shift0", "direct", "torus2d", "torus3d", "torus"})
      for (const SimulatedRank& rank : sent(name)) EXPECT_EQ(rank.bytes_sent, 2 * (n - 1) * s / n) << name;
    for (const SimulatedRank& rank : sent("double_tree")) {
      EXPECT_LE(rank.bytes_sent, 2 * s);
      total += rank.bytes_sent;
    }
    EXPECT_EQ(total, 2 * (n - 1) * s);
    if (!std::has_single_bit(n)) continue;
    for (const SimulatedRank& rank : sent("halving_doubling")) EXPECT_EQ(rank.bytes_sent, 2 * (n - 1) * s / n);
  }
}

TEST(Formulas, SendOnlyTwoPartsOfTheBufferAcrossNodes) {
  // 2(M-1)/M·S leaves each node, through one port or through all.
  Problem problem;
  problem.shape.dims = {4, 3};
  problem.size = 12;
  problem.count = 1200;
  for (auto name : {"hierarchical", "torus2d"}) {
    auto schedules = build_all(find_algorithm(Op::all_reduce, name), for_every_rank(problem));
    std::vector<size_t> across(3, 0);
    for (size_t r = 0; r < schedules.size(); ++r)
      for (const Action& action : schedules[r].actions)
        if (action.act == Act::send && action.peer / 4 != static_cast<int>(r) / 4) across[r / 4] += action.region.count;
    for (size_t sent : across) EXPECT_EQ(sent, 2u * 2 * 1200 / 3) << name;
  }
}

}  // namespace
}  // namespace esp::comm
