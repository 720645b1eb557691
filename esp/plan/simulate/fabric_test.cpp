#include "esp/plan/simulate/fabric.h"

#include <gtest/gtest.h>

#include "esp/comm/algo/table.h"

namespace esp::plan {
namespace {

// Two leaves with two nodes of two processors each. A byte takes 1 s inside a node and 10 s between nodes.
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

// Time until every processor of one leaf has sent to its counterpart in the other leaf.
double all_across(double oversubscription, const FabricOptions& options = {}) {
  const Cluster cluster = small(oversubscription);
  EventEngine engine;
  Fabric fabric(engine, cluster, 8, options);
  for (int i = 0; i < 4; ++i) {
    const auto path = fabric.path(i, i + 4);
    engine.transfer(path.route, path.alpha_s, 100);
  }
  return engine.run();
}

TEST(Fabric, LeafSendsAtFullRateWithoutOversubscription) {
  EXPECT_NEAR(all_across(1), 1000, 1e-6);
}

TEST(Fabric, OversubscriptionDividesUplinkRate) {
  EXPECT_NEAR(all_across(2), 2000, 1e-6);
  EXPECT_NEAR(all_across(4), 4000, 1e-6);
}

// There is one uplink per port. With hashing some pairs share an uplink and get at most half of its rate, while other
// uplinks are idle.
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

TEST(Fabric, RoutesAvoidSpineInsideDomainAndLeaf) {
  const Cluster cluster = small(4);
  EventEngine engine;
  Fabric fabric(engine, cluster, 8);
  const auto near = fabric.path(0, 1), leaf = fabric.path(1, 2);
  const TaskId a = engine.transfer(near.route, near.alpha_s, 100), b = engine.transfer(leaf.route, leaf.alpha_s, 100);
  engine.run();
  EXPECT_NEAR(engine.end_time(a), 100, 1e-9);
  EXPECT_NEAR(engine.end_time(b), 1000, 1e-9);
  EXPECT_NEAR(fabric.busy_out(0, false), 100, 1e-9);
  EXPECT_NEAR(fabric.busy_out(1, true), 1000, 1e-9);
}

// Torus all-reduce over a node (G ranks) and the network (M nodes) of S bytes: 2(G−1)/G·S bytes inside the node,
// 2(M−1)/M·S/G across, each with the β of its tier.
TEST(Fabric, TwoTierAllReduceMatchesFormula) {
  const Cluster cluster = small(1);
  comm::CollectiveSpec problem;
  problem.op = comm::Op::all_reduce;
  problem.size = 8;
  problem.count = 800;
  problem.shape.dims = {2, 4};
  const CollectiveGraph shape(schedules_of(comm::find_algorithm(comm::Op::all_reduce, "torus2d"), problem), 1);
  EventEngine engine;
  Fabric fabric(engine, cluster, 8);
  const CollectivePorts ports = fabric.ports_of({0, 1, 2, 3, 4, 5, 6, 7});
  const std::vector<TaskId> now(8, kNoId);
  add_collective(engine, shape, ports, now);
  EXPECT_NEAR(engine.run(), 2 * 0.5 * 800 * 1 + 2 * 0.75 * 400 * 10, 1e-6);
}

}  // namespace
}  // namespace esp::plan
