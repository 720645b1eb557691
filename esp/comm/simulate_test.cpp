// Simulated times equal the textbook formulas exactly, in picoseconds, and also the cost functions that `auto`
// compares.
#include "esp/comm/simulate.h"

#include <gtest/gtest.h>

#include <bit>
#include <functional>

#include "esp/base/error.h"
#include "esp/comm/algo/table.h"
#include "esp/comm/validate.h"

namespace esp::comm {
namespace {

constexpr net::LinkCost kLink{1'000'000, 80};  // latency 1 µs, bandwidth 12.5 GB/s

CollectiveSpec spec_of(Op op, int size, size_t count) {
  CollectiveSpec spec;
  spec.op = op;
  spec.size = size;
  spec.count = count;
  return spec;
}

int64_t time_of(const AlgorithmRow& row, const CollectiveSpec& spec, size_t element_bytes = 1) {
  return simulate(build_all(row, specs_for_all_ranks(spec)), element_bytes, kLink).time_ps;
}

int64_t up(int n) {
  return n <= 1 ? 0 : 1 + up((n + 1) / 2);
}

// Time of `num` messages that are sent one after another and have `bytes` bytes in total.
int64_t in_turn(int64_t num, int64_t bytes) {
  return num * kLink.alpha_ps + bytes * kLink.beta_ps_per_byte;
}

struct Exact {
  Op op;
  std::string_view name;
  bool powers_only;
  std::function<int64_t(int64_t n, int64_t s)> time;  // expected time for n ranks and s bytes
};

const Exact kExact[] = {
    {Op::all_reduce, "ring", false, [](int64_t n, int64_t s) { return in_turn(2 * (n - 1), 2 * (n - 1) * s / n); }},
    {Op::all_reduce, "ring_shift0", false,
     [](int64_t n, int64_t s) { return in_turn(2 * (n - 1), 2 * (n - 1) * s / n); }},
    {Op::all_reduce, "direct", false, [](int64_t n, int64_t s) { return in_turn(2 * (n - 1), 2 * (n - 1) * s / n); }},
    {Op::all_reduce, "ring_bidirectional", false,
     [](int64_t n, int64_t s) { return in_turn(4 * (n - 1), 2 * (n - 1) * s / n); }},
    {Op::all_reduce, "naive", false, [](int64_t n, int64_t s) { return in_turn(2 * (n - 1), 2 * (n - 1) * s); }},
    {Op::all_reduce, "recursive_doubling", true, [](int64_t n, int64_t s) { return up(n) * in_turn(1, s); }},
    {Op::all_reduce, "halving_doubling", true,
     [](int64_t n, int64_t s) { return in_turn(2 * up(n), 2 * (n - 1) * s / n); }},
    {Op::all_reduce, "tree", false, [](int64_t n, int64_t s) { return 2 * up(n) * in_turn(1, s); }},
    {Op::broadcast, "tree", false, [](int64_t n, int64_t s) { return up(n) * in_turn(1, s); }},
    {Op::broadcast, "naive", false, [](int64_t n, int64_t s) { return (n - 1) * in_turn(1, s); }},
    {Op::broadcast, "scatter_allgather", true,
     [](int64_t n, int64_t s) { return in_turn(up(n) + n - 1, 2 * (n - 1) * s / n); }},
    {Op::reduce, "tree", false, [](int64_t n, int64_t s) { return up(n) * in_turn(1, s); }},
    {Op::reduce, "naive", false, [](int64_t n, int64_t s) { return (n - 1) * in_turn(1, s); }},
    {Op::reduce_scatter, "ring", false, [](int64_t n, int64_t s) { return in_turn(n - 1, (n - 1) * s / n); }},
    {Op::reduce_scatter, "direct", false, [](int64_t n, int64_t s) { return in_turn(n - 1, (n - 1) * s / n); }},
    {Op::reduce_scatter, "halving_doubling", true,
     [](int64_t n, int64_t s) { return in_turn(up(n), (n - 1) * s / n); }},
    {Op::all_gather, "ring", false, [](int64_t n, int64_t s) { return in_turn(n - 1, (n - 1) * s / n); }},
    {Op::all_gather, "pairwise", false, [](int64_t n, int64_t s) { return in_turn(n - 1, (n - 1) * s / n); }},
    {Op::all_gather, "bruck", false, [](int64_t n, int64_t s) { return in_turn(up(n), (n - 1) * s / n); }},
    {Op::all_gather, "recursive_doubling", true, [](int64_t n, int64_t s) { return in_turn(up(n), (n - 1) * s / n); }},
    {Op::all_to_all, "pairwise", false, [](int64_t n, int64_t s) { return in_turn(n - 1, (n - 1) * s / n); }},
    {Op::all_to_all, "bruck", true, [](int64_t n, int64_t s) { return in_turn(up(n), s / 2 * up(n)); }},
    {Op::gather, "tree", true, [](int64_t n, int64_t s) { return in_turn(up(n), (n - 1) * s / n); }},
    {Op::gather, "direct", false, [](int64_t n, int64_t s) { return in_turn(n - 1, (n - 1) * s / n); }},
    {Op::scatter, "tree", true, [](int64_t n, int64_t s) { return in_turn(up(n), (n - 1) * s / n); }},
    {Op::scatter, "direct", false, [](int64_t n, int64_t s) { return in_turn(n - 1, (n - 1) * s / n); }},
    {Op::barrier, "dissemination", false, [](int64_t n, int64_t) { return in_turn(up(n), 0); }},
};

TEST(Simulate, MatchesFormulasExactly) {
  for (const Exact& exact : kExact)
    for (int n = 1; n <= 17; ++n) {
      if (exact.powers_only && !std::has_single_bit(static_cast<unsigned>(n))) continue;
      const AlgorithmRow& row = find_algorithm(exact.op, exact.name);
      CollectiveSpec spec = spec_of(exact.op, n, exact.op == Op::barrier ? 0 : static_cast<size_t>(n) * 960);
      int64_t want = exact.time(n, static_cast<int64_t>(spec.count));
      EXPECT_EQ(time_of(row, spec), want) << name_of(exact.op) << " " << exact.name << " size " << n;
      double seconds = row.cost(spec, 1, kLink.alpha_ps * 1e-12, kLink.beta_ps_per_byte * 1e-12);
      EXPECT_NEAR(seconds * 1e12, static_cast<double>(want), 1e-6 * static_cast<double>(want)) << exact.name << n;
    }
}

TEST(Simulate, NonPowerOfTwoSizesTakeTwoMoreRounds) {
  for (int n : {3, 5, 6, 7, 12, 17}) {
    int64_t p = std::bit_floor(static_cast<unsigned>(n));
    CollectiveSpec spec = spec_of(Op::all_reduce, n, static_cast<size_t>(p) * 100);
    auto s = static_cast<int64_t>(spec.count);
    EXPECT_EQ(time_of(find_algorithm(Op::all_reduce, "recursive_doubling"), spec), (up(p) + 2) * in_turn(1, s));
    EXPECT_EQ(time_of(find_algorithm(Op::all_reduce, "halving_doubling"), spec),
              in_turn(2 * up(p), 2 * (p - 1) * s / p) + 2 * in_turn(1, s));
  }
}

TEST(Simulate, NumberOfRoundsOfPipelinedChainMatchesFormula) {
  for (Op op : {Op::broadcast, Op::reduce})
    for (int ranks : {2, 3, 4, 8, 13})
      for (int segments : {1, 2, 5, 10, 50}) {
        CollectiveSpec spec = spec_of(op, ranks, 1000);
        spec.segments = segments;
        spec.root = ranks / 2;
        const AlgorithmRow& row = find_algorithm(op, "ring_pipelined");
        int64_t want = (ranks - 2 + segments) * in_turn(1, 1000 / segments);
        EXPECT_EQ(time_of(row, spec), want) << ranks << " " << segments;
        EXPECT_NEAR(row.cost(spec, 1, 1e-6, 80e-12) * 1e12, static_cast<double>(want), 1);
      }
}

TEST(Simulate, TorusTimeMatchesFormulaForEveryGrid) {
  struct Grid {
    std::string_view name;
    std::vector<int> dims;
  };
  for (const Grid& grid : {Grid{"torus2d", {4, 2}}, Grid{"torus2d", {3, 5}}, Grid{"torus3d", {3, 3, 3}},
                           Grid{"torus3d", {2, 3, 4}}, Grid{"torus", {2, 2, 2, 2}}, Grid{"mesh2d", {4, 3}},
                           Grid{"hierarchical", {4, 3}}, Grid{"hierarchical", {6, 2}}}) {
    int n = 1, axes = 0;
    for (int d : grid.dims) {
      n *= d;
      axes += d - 1;
    }
    CollectiveSpec spec = spec_of(Op::all_reduce, n, static_cast<size_t>(n) * 60);
    spec.shape.dims = grid.dims;
    int64_t s = n * 60, x = grid.dims[0], y = grid.dims[1];
    int64_t want = in_turn(2 * axes, 2 * (n - 1) * s / n);
    if (grid.name == "mesh2d") want = in_turn(2 * axes, 2 * (x - 1) * s / x + 2 * (y - 1) * s / y);
    if (grid.name == "hierarchical")
      want = 2 * up(grid.dims[0]) * in_turn(1, s) + in_turn(2 * (y - 1), 2 * (y - 1) * s / y);
    const AlgorithmRow& row = find_algorithm(Op::all_reduce, grid.name);
    EXPECT_EQ(time_of(row, spec), want) << grid.name;
    EXPECT_NEAR(row.cost(spec, 1, 1e-6, 80e-12) * 1e12, static_cast<double>(want), 1) << grid.name;
  }
  CollectiveSpec spec = spec_of(Op::all_to_all, 12, 1200);
  spec.shape.dims = {4, 3};
  EXPECT_EQ(time_of(find_algorithm(Op::all_to_all, "hierarchical"), spec), in_turn(3 + 2, 3 * 300 + 2 * 400));
}

TEST(Simulate, DoubleTreeTimeStaysWithinBound) {
  for (int n : {2, 3, 4, 7, 8, 16, 17, 64})
    for (int k : {1, 4, 16}) {
      CollectiveSpec spec = spec_of(Op::all_reduce, n, 16000);
      spec.segments = k;
      const AlgorithmRow& row = find_algorithm(Op::all_reduce, "double_tree");
      int64_t rounds = 2 * up(n) + k - 1, bound = rounds * in_turn(4, 2 * 16000 / k);
      // For odd sizes one edge has a separate slot, and other messages may wait for it, so the bound is 25% higher.
      EXPECT_LE(time_of(row, spec), n % 2 == 0 ? bound : bound / 4 * 5) << n << " " << k;
      EXPECT_NEAR(row.cost(spec, 1, 1e-6, 80e-12) * 1e12, static_cast<double>(bound), 1);
    }
}

TEST(Simulate, UsesCostOfEachLink) {
  // Four ranks on two nodes: every second link of the ring is slow and determines the time.
  auto cost = [](int a, int b) { return a / 2 == b / 2 ? net::LinkCost{1, 1} : net::LinkCost{100, 10}; };
  auto schedules =
      build_all(find_algorithm(Op::all_gather, "ring"), specs_for_all_ranks(spec_of(Op::all_gather, 4, 40)));
  SimulationResult simulated = simulate(schedules, 1, cost, true);
  EXPECT_EQ(simulated.num_messages, 12u);
  EXPECT_EQ(simulated.messages.size(), 12u);
  for (const SimulatedMessage& message : simulated.messages)
    EXPECT_EQ(message.end_ps - message.start_ps, message.from / 2 == message.to / 2 ? 11 : 200);
  // Rank 1 sends over the slow link three times without a pause, because the data it forwards has already arrived.
  EXPECT_EQ(simulated.time_ps, 3 * 200);
}

TEST(Simulate, SlicingOverlapsForwardingWithReceiving) {
  CollectiveSpec spec = spec_of(Op::broadcast, 8, 8000);
  auto schedules = build_all(find_algorithm(Op::broadcast, "ring_pipelined"), specs_for_all_ranks(spec));
  int64_t whole = simulate(schedules, 1, net::LinkCost{0, 80}).time_ps;
  for (Schedule& schedule : schedules) schedule = slice(schedule, 100);
  EXPECT_EQ(whole, 7 * 8000 * 80);
  EXPECT_EQ(simulate(schedules, 1, net::LinkCost{0, 80}).time_ps, (8 - 2 + 80) * 100 * 80);
}

TEST(Simulate, DetectsDeadlock) {
  Schedule first, second;
  first.num_rounds = second.num_rounds = 1;
  first.actions.push_back({ActionType::receive, 0, 1, {Buffer::output, 0, 4}, {}});
  EXPECT_THROW(simulate(std::vector{first, second}, 1, kLink), UsageError);
}

}  // namespace
}  // namespace esp::comm
