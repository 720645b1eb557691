// Compares the simulated time of each algorithm's schedule with textbook formulas and with the simulator of esp/comm.
#include "esp/plan/simulate/collective.h"

#include <gtest/gtest.h>

#include <cmath>

#include "esp/comm/algo/table.h"
#include "esp/comm/simulate.h"

namespace esp::plan {
namespace {

constexpr double kAlpha = 1e6, kBeta = 80;  // picoseconds per message; picoseconds per byte

comm::CollectiveSpec problem_of(comm::Op op, int size, size_t count) {
  comm::CollectiveSpec problem;
  problem.op = op;
  problem.size = size;
  problem.count = count;
  return problem;
}

double time_of(comm::Op op, const char* name, int size, size_t count, std::vector<int> dims = {}) {
  comm::CollectiveSpec problem = problem_of(op, size, count);
  problem.shape.dims = std::move(dims);
  return time_collective(schedules_of(comm::find_algorithm(op, name), problem), 1, kAlpha, 1 / kBeta).seconds;
}

TEST(CollectiveSimulation, MatchesTextbookFormulas) {
  for (const int n : {2, 4, 8, 16}) {
    const double s = n * 960.0, log = std::log2(n);
    const auto count = static_cast<size_t>(s);
    EXPECT_NEAR(time_of(comm::Op::all_reduce, "ring", n, count), 2 * (n - 1) * (kAlpha + s / n * kBeta), 1);
    EXPECT_NEAR(time_of(comm::Op::all_reduce, "halving_doubling", n, count),
                2 * log * kAlpha + 2 * (n - 1) * s / n * kBeta, 1);
    EXPECT_NEAR(time_of(comm::Op::all_reduce, "tree", n, count), 2 * log * (kAlpha + s * kBeta), 1);
    EXPECT_NEAR(time_of(comm::Op::all_reduce, "recursive_doubling", n, count), log * (kAlpha + s * kBeta), 1);
  }
  // A torus all-reduce sends as many bytes as one ring over all ranks, but the number of steps is the sum over its
  // axes.
  const double s = 12 * 960;
  EXPECT_NEAR(time_of(comm::Op::all_reduce, "torus2d", 12, 12 * 960, {4, 3}),
              2 * (3 + 2) * kAlpha + 2 * 11 * s / 12 * kBeta, 1);
}

// Compares with the simulator of esp/comm for the same schedules. That simulator shares no code with the event engine.
TEST(CollectiveSimulation, MatchesCommSimulatorForEveryAlgorithm) {
  int checked = 0;
  for (const comm::AlgorithmRow& row : comm::algorithms())
    for (const int n : {2, 3, 4, 6, 8, 13}) {
      if (row.op == comm::Op::all_to_all_v) continue;
      comm::CollectiveSpec problem =
          problem_of(row.op, n, row.op == comm::Op::barrier ? 0 : static_cast<size_t>(n) * 120);
      if (row.applies && !row.applies(problem).empty()) continue;
      const auto schedules = schedules_of(row, problem);
      const auto known = comm::simulate(schedules, 1, {1'000'000, 80});
      const CollectiveTime events = time_collective(schedules, 1, kAlpha, 1 / kBeta);
      EXPECT_NEAR(events.seconds, static_cast<double>(known.time_ps), 1) << row.name << " of " << n;
      const CollectiveGraph shape(schedules, 1);
      for (int r = 0; r < n; ++r)
        EXPECT_EQ(shape.bytes_sent(r), static_cast<double>(known.ranks[static_cast<size_t>(r)].bytes_sent)) << row.name;
      ++checked;
    }
  EXPECT_GT(checked, 100);
}

TEST(CollectiveSimulation, TwoConcurrentRingsShareOnePort) {
  const auto schedules =
      schedules_of(comm::find_algorithm(comm::Op::all_reduce, "ring"), problem_of(comm::Op::all_reduce, 4, 4000));
  const CollectiveGraph shape(schedules, 1);
  EventEngine engine;
  CollectivePorts ports;
  std::vector<LinkId> out;
  for (int r = 0; r < 4; ++r) {
    ports.out.push_back(engine.add_stream());
    ports.in.push_back(engine.add_stream());
    out.push_back(engine.add_link(10));
  }
  ports.path = [&](int from, int) {
    return CollectivePorts::LinkPath{engine.add_route({out[static_cast<size_t>(from)]}), 0};
  };
  const std::vector<TaskId> now(4, kNoId);
  add_collective(engine, shape, ports, now);
  add_collective(engine, shape, ports, now);
  EXPECT_NEAR(engine.run(), 2 * 6 * 1000 / 10.0, 1e-9);
}

}  // namespace
}  // namespace esp::plan
