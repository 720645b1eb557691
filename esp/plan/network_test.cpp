#include "esp/plan/network.h"

#include <gtest/gtest.h>

#include "esp/plan/catalog.h"

namespace esp::plan {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;

Cluster cluster_of(const char* chip, int gpus, double gbps_per_node = 0) {
  ClusterRequest request;
  request.gpus = gpus;
  request.net_gbps_per_node = gbps_per_node;
  return make_cluster(built_in_catalog(), built_in_catalog().processor(chip), request);
}

double reduced_in(const Cluster& c, double ranks, double bytes) {
  return all_reduce(c, group_of(c, ranks, 1), bytes).time_s;
}

// Measured with nccl-tests on 8 A100 (tables of the vTrain paper), and on 8 V100.
TEST(Network, NvlinkAllReduceMatchesMeasuredTime) {
  const Cluster a100 = cluster_of("A100-80GB-SXM", 8), v100 = cluster_of("V100-32GB-SXM2", 8);
  const struct { double mib, us; } measured[] = {{1, 93}, {4, 96}, {16, 232}, {64, 580}, {256, 2160}, {1024, 8190}};
  for (const auto& one : measured) EXPECT_NEAR(reduced_in(a100, 8, one.mib * kMiB) * 1e6, one.us, 0.2 * one.us);
  EXPECT_NEAR(reduced_in(v100, 8, 64 * kMiB) * 1e6, 911, 60);
  EXPECT_NEAR(reduced_in(v100, 8, 1024 * kMiB) * 1e6, 14000, 500);
}

// All-reduce measured on one node of 8 B200: 51 µs for 1 MiB, 293 µs for 64 MiB.
TEST(Network, Nvlink5AllReduceMatchesMeasuredTime) {
  const Cluster c = cluster_of("B200-180GB", 8, 3200);
  const CollectiveGroup g = group_of(c, 8, 1);
  const double mib = 1024.0 * 1024;
  EXPECT_NEAR(all_reduce(c, g, mib).time_s, 51e-6, 10e-6);
  EXPECT_NEAR(all_reduce(c, g, 64 * mib).time_s, 293e-6, 40e-6);
}

// Measured on 4 nodes of 8 B200 with 400 Gb/s per GPU: 12 % of the wire rate at 16 MiB, 30 % at 64 MiB, 70 % at 1 GiB.
TEST(Network, AllReduceBetweenNodesReachesMeasuredFractionOfWireRate) {
  const Cluster c = cluster_of("B200-180GB", 32, 3200);
  const CollectiveGroup group = group_of(c, 32, 1);
  EXPECT_EQ(group.inside, 8);
  EXPECT_EQ(group.domains, 4);
  const auto share = [&](double bytes) {
    const double wire = 2 * 3.0 / 4 * bytes / 8 / 50e9;
    return wire / all_reduce(c, group, bytes).time_s;
  };
  EXPECT_NEAR(share(16 * kMiB), 0.12, 0.06);
  EXPECT_NEAR(share(64 * kMiB), 0.30, 0.13);
  EXPECT_NEAR(share(1024 * kMiB), 0.70, 0.10);
}

TEST(Network, SentBytesMatchRingFormula) {
  const Cluster c = cluster_of("A100-80GB-SXM", 64);
  EXPECT_DOUBLE_EQ(all_reduce(c, group_of(c, 8, 1), 800).bytes, 2 * 7.0 / 8 * 800);
  EXPECT_DOUBLE_EQ(all_gather(c, group_of(c, 64, 1), 6400).bytes, 63.0 / 64 * 6400);
  EXPECT_EQ(all_reduce(c, group_of(c, 1, 1), 800).time_s, 0);
}

TEST(Network, StrideDeterminesPlacementOnNodes) {
  const Cluster c = cluster_of("A100-80GB-SXM", 64);
  EXPECT_FALSE(spans_domains(group_of(c, 8, 1)));
  EXPECT_EQ(group_of(c, 8, 2).inside, 4);
  EXPECT_EQ(group_of(c, 8, 8).inside, 1);
  EXPECT_EQ(group_of(c, 8, 8).domains, 8);
}

TEST(Network, TimeNeverRisesWithBandwidthAndNeverFallsWithMoreRanks) {
  Cluster c = cluster_of("A100-80GB-SXM", 1024);
  for (const double bytes : {1e4, 1e6, 1e8, 1e10}) {
    double last = 0;
    for (const double ranks : {2.0, 8.0, 16.0, 128.0, 1024.0}) {
      const double now = all_gather(c, group_of(c, ranks, 1), bytes).time_s;
      EXPECT_GT(now, last);
      last = now;
    }
    Cluster faster = c;
    faster.across.bandwidth *= 2;
    faster.inside.bandwidth *= 2;
    EXPECT_LE(reduced_in(faster, 64, bytes), reduced_in(c, 64, bytes));
    EXPECT_LT(all_to_all(faster, group_of(c, 16, 1), bytes).time_s, all_to_all(c, group_of(c, 16, 1), bytes).time_s);
    EXPECT_LT(send(faster, 8, bytes).time_s, send(c, 8, bytes).time_s);
  }
}

TEST(Network, OversubscribedSpineSlowsTrafficBetweenLeaves) {
  Cluster c = cluster_of("A100-80GB-SXM", 256);
  c.leaf_nodes = 4;
  const double before = reduced_in(c, 256, 1e9), below = reduced_in(c, 32, 1e9);
  c.oversubscription = 4;
  EXPECT_GT(reduced_in(c, 256, 1e9), 2 * before);
  EXPECT_EQ(reduced_in(c, 32, 1e9), below);
}

}  // namespace
}  // namespace esp::plan
