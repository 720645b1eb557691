#include "esp/sync/gossip/gossip_topology.h"

#include <gtest/gtest.h>

#include <cmath>

#include "esp/base/error.h"

namespace esp::sync {
namespace {

constexpr double kPi = 3.14159265358979323846;

int log2_up(int n) {
  return static_cast<int>(std::ceil(std::log2(n)));
}

std::string refused(const std::function<void()>& f) {
  try {
    f();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "nothing was refused";
}

std::vector<std::vector<double>> dense(const MixingMatrix& mixing) {
  std::vector<std::vector<double>> w(mixing.size(), std::vector<double>(mixing.size()));
  for (size_t i = 0; i < mixing.size(); ++i)
    for (const NeighbourWeight& one : mixing[i]) w[i][static_cast<size_t>(one.from)] = one.weight;
  return w;
}

TEST(GossipTopology, EveryNamedTopologyIsDoublyStochasticAndConnected) {
  for (const TopologyRow& row : topologies())
    for (int n = 1; n <= 33; ++n) {
      const GossipTopology topology = row.make(n);
      ASSERT_EQ(topology.size(), n) << row.name;
      EXPECT_NO_THROW(check_topology(topology)) << row.name << " of " << n;
    }
}

TEST(GossipTopology, SpectralGapsEqualTheFormulas) {
  for (int n = 2; n <= 16; ++n) {
    const auto gap = [&](const char* name) { return spectral_gap(make_topology(name, n)); };
    EXPECT_NEAR(gap("full"), 1, 1e-12) << n;
    EXPECT_NEAR(gap("star"), n == 2 ? 1 : 1.0 / n, 1e-9) << n;  // for n = 2 one step averages exactly
    EXPECT_NEAR(gap("ring"), n == 2 ? 1 : 2.0 / 3 * (1 - std::cos(2 * kPi / n)), 1e-9) << n;
    const double exponential = 2.0 / (1 + log2_up(n));
    if (n % 2 == 0)
      EXPECT_NEAR(gap("exponential"), exponential, 1e-9) << n;
    else
      EXPECT_GT(gap("exponential"), exponential) << n;
    EXPECT_GT(gap("grid"), 0) << n;
    EXPECT_LE(gap("grid"), 1) << n;
  }
}

// A path of four replicas, all edge weights 1/3: the second eigenvalue is 1 − (2 − √2)/3, so the spectral gap is (2 −
// √2)/3.
TEST(GossipTopology, SpectralGapOfAPathEqualsOneMinusItsSecondEigenvalue) {
  const std::pair<int, int> edges[] = {{0, 1}, {1, 2}, {2, 3}};
  EXPECT_NEAR(spectral_gap({"path", {metropolis_hastings(4, edges)}}), (2 - std::sqrt(2.0)) / 3, 1e-12);
}

TEST(GossipTopology, OnePeerAveragesAllAfterLogNSteps) {
  for (int bits = 1; bits <= 6; ++bits) {
    const int n = 1 << bits;
    const GossipTopology topology = make_topology("one_peer", n);
    ASSERT_EQ(topology.turns.size(), static_cast<size_t>(bits));
    // any log2 n consecutive steps average exactly, also if they do not start at step 0
    for (int first = 0; first < bits; ++first) {
      std::vector<std::vector<double>> product(static_cast<size_t>(n), std::vector<double>(static_cast<size_t>(n)));
      for (size_t i = 0; i < product.size(); ++i) product[i][i] = 1;
      for (int k = 0; k < bits; ++k) {
        const auto w = dense(topology.at(first + k));
        auto next = product;
        for (size_t i = 0; i < product.size(); ++i)
          for (size_t j = 0; j < product.size(); ++j) {
            next[i][j] = 0;
            for (size_t m = 0; m < product.size(); ++m) next[i][j] += w[i][m] * product[m][j];
          }
        product = next;
      }
      for (const auto& row : product)
        for (const double one : row) ASSERT_EQ(one, 1.0 / n);  // the average is exact if n is a power of two
    }
    EXPECT_EQ(spectral_gap(topology), 1);
  }
}

TEST(GossipTopology, NumberOfOutNeighboursEqualsTheDegree) {
  const int n = 12;
  const auto most = [&](const char* name) {
    size_t all = 0;
    const GossipTopology topology = make_topology(name, n);
    for (int i = 0; i < n; ++i) all = std::max(all, out_neighbours(topology.at(0), i).size());
    return all;
  };
  EXPECT_EQ(most("full"), 11u);
  EXPECT_EQ(most("ring"), 2u);
  EXPECT_EQ(most("grid"), 4u);  // 12 replicas form a 3 × 4 grid
  EXPECT_EQ(most("exponential"), 4u);
  EXPECT_EQ(most("one_peer"), 1u);
  EXPECT_EQ(out_neighbours(make_topology("star", n).at(0), 3), std::vector<int>{0});
}

TEST(GossipTopology, MetropolisHastingsWeighsByTheLargerDegree) {
  const std::pair<int, int> edges[] = {{0, 1}, {0, 2}, {0, 3}, {2, 3}};
  const auto w = dense(metropolis_hastings(4, edges));
  EXPECT_EQ(w[0][1], 0.25);
  EXPECT_EQ(w[2][3], 1.0 / 3);
  EXPECT_NEAR(w[1][1], 0.75, 1e-15);
  EXPECT_NEAR(w[2][2], 1 - 0.25 - 1.0 / 3, 1e-15);
}

TEST(GossipTopology, RejectsMatricesThatChangeTheMeanOrAreDisconnected) {
  const GossipTopology rows{"mine", {{{{0, 0.5}, {1, 0.4}}, {{0, 0.5}, {1, 0.5}}}}};
  EXPECT_NE(refused([&] { check_topology(rows); }).find("incoming weights of node 0: got the sum 0.9"),
            std::string::npos);
  const GossipTopology columns{"mine", {{{{0, 0.5}, {1, 0.5}}, {{0, 0.25}, {1, 0.75}}}}};
  EXPECT_NE(refused([&] { check_topology(columns); }).find("outgoing weights of node 0: got the sum 0.75"),
            std::string::npos);
  const GossipTopology negative{"mine", {{{{0, 1.5}, {1, -0.5}}, {{0, -0.5}, {1, 1.5}}}}};
  EXPECT_NE(refused([&] { check_topology(negative); }).find("expected 0 to 1"), std::string::npos);
  const GossipTopology apart{"mine", {{{{0, 1}}, {{1, 1}}}}};
  EXPECT_NE(refused([&] { check_topology(apart); }).find("node 1 is not reachable from node 0"), std::string::npos);
  EXPECT_NE(refused([&] { make_topology("rnig", 4); }).find("ring"), std::string::npos);
}

}  // namespace
}  // namespace esp::sync
