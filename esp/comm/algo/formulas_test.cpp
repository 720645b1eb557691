// Compares bytes, messages and rounds of the schedules of every algorithm with the closed formulas, for every rank of
// groups of 1 to 17 and of 27 ranks.
#include <gtest/gtest.h>

#include <bit>
#include <functional>
#include <numeric>

#include "esp/comm/algo/closed_forms.h"
#include "esp/comm/algo/table.h"
#include "esp/comm/simulate.h"
#include "esp/comm/validate.h"

namespace esp::comm {
namespace {

using namespace closed;

void expect_formula(const AlgorithmRow& row, const Formula& formula, CollectiveSpec spec, Count segments) {
  if (row.applies && !row.applies(spec).empty()) return;
  auto specs = specs_for_all_ranks(spec);
  auto schedules = build_all(row, specs);
  SimulationResult simulated = simulate(schedules, 1, net::LinkCost{1, 1});
  Case c{spec.size, 0, spec.root, static_cast<Count>(spec.count), spec.shape.dims, static_cast<int>(segments)};
  if (formula.num_axes >= 0 && c.dims.empty()) c.dims = even_grid(spec.size, formula.num_axes);
  std::string what =
      fmt::format("{} {} size {} count {} root {}", name_of(row.op), row.name, spec.size, spec.count, spec.root);
  EXPECT_EQ(simulated.num_rounds, formula.rounds(c)) << what;
  for (; c.r < c.size; ++c.r) {
    SentCount want = formula.sent(c);
    const SimulatedRank& got = simulated.ranks[static_cast<size_t>(c.r)];
    EXPECT_EQ(static_cast<Count>(got.bytes_sent), want.elements) << what << " rank " << c.r;
    EXPECT_EQ(static_cast<Count>(got.messages_sent), want.messages) << what << " rank " << c.r;
  }
}

TEST(ClosedForms, MatchSchedulesOfEveryRank) {
  for (const AlgorithmRow& row : algorithms()) {
    if (row.op == Op::all_to_all_v) continue;
    const Formula* formula = formula_of(row);
    ASSERT_NE(formula, nullptr) << name_of(row.op) << " " << row.name << " has no formula here";
    bool rooted = row.op == Op::broadcast || row.op == Op::reduce || row.op == Op::gather || row.op == Op::scatter;
    for (int size = 1; size <= 27; size += size == 17 ? 10 : 1)
      for (size_t count : {size_t{0}, size_t{1}, size_t(size) - 1, size_t(size), size_t(size) + 1, size_t{1000},
                           size_t(size) * size_t(size) * 20})
        for (int root = 0; root < (rooted ? size : 1); ++root) {
          CollectiveSpec spec;
          spec.op = row.op;
          spec.size = size;
          spec.count = row.op == Op::barrier ? 0 : count;
          spec.root = root;
          expect_formula(row, *formula, spec, 1);  // a buffer this short has one segment
          spec.segments = 4;
          if (row.name.ends_with("pipelined") || row.name == "double_tree") expect_formula(row, *formula, spec, 4);
        }
  }
}

TEST(ClosedForms, MatchSchedulesOnGivenGrids) {
  for (const auto& dims : std::vector<std::vector<int>>{{4, 2}, {2, 4}, {3, 5}, {3, 3, 3}, {2, 2, 2, 2}, {2, 3, 4}})
    for (const AlgorithmRow& row : algorithms()) {
      const Formula* formula = formula_of(row);
      if (!formula || formula->num_axes < 0) continue;
      if (formula->num_axes != 0 && formula->num_axes != static_cast<int>(dims.size())) continue;
      CollectiveSpec spec;
      spec.op = row.op;
      spec.shape.dims = dims;
      spec.size = std::accumulate(dims.begin(), dims.end(), 1, std::multiplies<>());
      spec.count = static_cast<size_t>(spec.size) * 10;
      expect_formula(row, *formula, spec, 1);
    }
}

// Checks the totals quoted in the literature, with equal chunks.
TEST(ClosedForms, MatchTotalsInLiterature) {
  for (int size : {2, 3, 4, 8, 12, 16, 27}) {
    CollectiveSpec spec;
    spec.size = size;
    spec.count = static_cast<size_t>(size) * 1000;
    auto sent = [&](std::string_view name) {
      const AlgorithmRow& row = find_algorithm(Op::all_reduce, name);
      return simulate(build_all(row, specs_for_all_ranks(spec)), 4, net::LinkCost{}).ranks;
    };
    uint64_t s = spec.count * 4, n = static_cast<uint64_t>(size), total = 0;
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

TEST(ClosedForms, MatchCrossNodeTraffic) {
  // Each node must send 2(M-1)/M·S bytes to other nodes, whether through one port or through all ports.
  CollectiveSpec spec;
  spec.shape.dims = {4, 3};
  spec.size = 12;
  spec.count = 1200;
  for (auto name : {"hierarchical", "torus2d"}) {
    auto schedules = build_all(find_algorithm(Op::all_reduce, name), specs_for_all_ranks(spec));
    std::vector<size_t> across(3, 0);
    for (size_t r = 0; r < schedules.size(); ++r)
      for (const Action& action : schedules[r].actions)
        if (action.type == ActionType::send && action.peer / 4 != static_cast<int>(r) / 4)
          across[r / 4] += action.region.count;
    for (size_t sent : across) EXPECT_EQ(sent, 2u * 2 * 1200 / 3) << name;
  }
}

}  // namespace
}  // namespace esp::comm
