#include "esp/plan/simulate/fabric.h"

#include <gtest/gtest.h>

#include "esp/comm/algo/table.h"

namespace esp::plan {
namespace {

// Two leaves of two nodes of two processors; a byte takes 1 inside and 10 across.
Cluster small(double oversubscription) {
  Cluster c;
  c.num_nodes = 4;
  c.per_node = c.domain = 2;
  c.leaf_nodes = 2;
  c.oversubscription = oversubscription;
  c.inside.bandwidth = 1;
  c.across.bandwidth = 0.1;
  c.inside.efficiency = c.across.efficiency = 1;
  return c;
}

// Every processor of one leaf sends to its counterpart in the other.
double all_across(double oversubscription, const FabricOptions& options = {}) {
  const Cluster cluster = small(oversubscription);
  EventEngine engine;
  Fabric fabric(engine, cluster, 8, options);
  for (int i = 0; i < 4; ++i) {
    const auto way = fabric.way(i, i + 4);
    engine.transfer(way.route, way.alpha_s, 100);
  }
  return engine.run();
}

TEST(Fabric, CarriesALeafAtFullRateWhereTheSpineIsAsWide) {
  EXPECT_NEAR(all_across(1), 1000, 1e-6);
}

TEST(Fabric, SharesTheUplinksByOversubscription) {
  EXPECT_NEAR(all_across(2), 2000, 1e-6);
  EXPECT_NEAR(all_across(4), 4000, 1e-6);
}

// One uplink per port: by hash some pairs share one and get half or less, while other uplinks are idle.
TEST(Fabric, HashedFlowsShareUplinks) {
  double most = 0, least = 1e9;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const double time = all_across(1, {true, seed});
    most = std::max(most, time);
    least = std::min(least, time);
  }
  EXPECT_GE(least, 1000 - 1e-6);
  EXPECT_GE(most, 2000 - 1e-6);
}

TEST(Fabric, RoutesInsideADomainOrBelowALeafWherePossible) {
  const Cluster cluster = small(4);
  EventEngine engine;
  Fabric fabric(engine, cluster, 8);
  const auto near = fabric.way(0, 1), leaf = fabric.way(1, 2);
  const TaskId a = engine.transfer(near.route, near.alpha_s, 100), b = engine.transfer(leaf.route, leaf.alpha_s, 100);
  engine.run();
  EXPECT_NEAR(engine.end_of(a), 100, 1e-9);
  EXPECT_NEAR(engine.end_of(b), 1000, 1e-9);
  EXPECT_NEAR(fabric.busy_out(0, false), 100, 1e-9);
  EXPECT_NEAR(fabric.busy_out(1, true), 1000, 1e-9);
}

// Torus over node and network: inside 2(G−1)/G·S, across 2(M−1)/M·S/G, each with its tier's β.
TEST(Fabric, RunsATwoTierAllReduceAsTheFormula) {
  const Cluster cluster = small(1);
  comm::CollectiveSpec problem;
  problem.op = comm::Op::all_reduce;
  problem.size = 8;
  problem.count = 800;
  problem.shape.dims = {2, 4};
  const CollectiveShape shape(schedules_of(comm::find_algorithm(comm::Op::all_reduce, "torus2d"), problem), 1);
  EventEngine engine;
  Fabric fabric(engine, cluster, 8);
  const CollectivePorts ports = fabric.ports_of({0, 1, 2, 3, 4, 5, 6, 7});
  const std::vector<TaskId> now(8, kNone);
  add_collective(engine, shape, ports, now);
  EXPECT_NEAR(engine.run(), 2 * 0.5 * 800 * 1 + 2 * 0.75 * 400 * 10, 1e-6);
}

}  // namespace
}  // namespace esp::plan
