#include "esp/comm/selector.h"

#include <gtest/gtest.h>

#include "esp/comm/algo/table.h"
#include "esp/comm/communicator.h"
#include "esp/net/inproc/threads.h"
#include "esp/net/virtual/network.h"

namespace esp::comm {
namespace {

CollectiveSpec all_reduce_of(size_t count, int size) {
  CollectiveSpec spec;
  spec.op = Op::all_reduce;
  spec.size = size;
  spec.count = count;
  return spec;
}

GroupLinks equal_links(AlphaBeta link) {
  GroupLinks links;
  links.widest = Tier::network;
  links.tiers.links.fill(link);
  return links;
}

TEST(FitAlphaBeta, RecoversAlphaAndBeta) {
  std::vector<double> bytes = {64, 8192, 131072, 1048576}, seconds;
  for (double x : bytes) seconds.push_back(5e-6 + x * 2e-10);
  AlphaBeta link = fit_alpha_beta(bytes, seconds);
  EXPECT_NEAR(link.alpha, 5e-6, 1e-12);
  EXPECT_NEAR(link.beta, 2e-10, 1e-16);
}

TEST(FitAlphaBeta, NeverReturnsNegativeAlphaOrBeta) {
  AlphaBeta falling = fit_alpha_beta(std::vector<double>{1, 1000}, std::vector<double>{2e-6, 1e-6});
  EXPECT_GE(falling.alpha, 0);
  EXPECT_GE(falling.beta, 0);
  AlphaBeta steep = fit_alpha_beta(std::vector<double>{100, 1000}, std::vector<double>{1e-9, 1e-3});
  EXPECT_GE(steep.alpha, 0);
  EXPECT_GT(steep.beta, 0);
}

TEST(Selector, PrefersFewMessagesForSmallBuffersAndFewBytesForLarge) {
  GroupLinks links = equal_links({20e-6, 1e-9});
  EXPECT_EQ(choose(all_reduce_of(4, 16), 4, links).name, "recursive_doubling");
  auto large = candidates(all_reduce_of(size_t{1} << 26, 16), 4, links);
  double bytes_bound = 2.0 * 15 / 16 * (size_t{1} << 28) * 1e-9;
  EXPECT_LT(large.front().seconds, bytes_bound * 1.1) << large.front().row->name;
}

TEST(Selector, SortsCandidatesByTimeAndListsExcludedLast) {
  auto sorted = candidates(all_reduce_of(1000, 7), 4, equal_links({1e-6, 1e-9}));
  bool excluded = false;
  for (size_t i = 1; i < sorted.size(); ++i) {
    if (sorted[i].excluded.empty()) {
      EXPECT_FALSE(excluded);
      EXPECT_LE(sorted[i - 1].seconds, sorted[i].seconds);
    } else {
      excluded = true;
    }
  }
}

TEST(Selector, PrefersNodeAwareAlgorithmWhenNetworkIsSlow) {
  GroupLinks links;
  links.widest = Tier::network;
  links.equal = false;
  links.tier = [](int a, int b) { return a / 3 == b / 3 ? Tier::host : Tier::network; };
  links.tiers.links = {AlphaBeta{1e-6, 1e-10}, AlphaBeta{1e-6, 1e-10}, AlphaBeta{50e-6, 1e-8}};
  CollectiveSpec spec = all_reduce_of(size_t{1} << 20, 9);
  spec.shape = {{3, 3}};
  auto sorted = candidates(spec, 4, links);
  double ring = 0;
  for (const Candidate& candidate : sorted)
    if (candidate.row->name == "ring") ring = candidate.seconds;
  EXPECT_LT(sorted.front().seconds, ring);
  std::string_view best = sorted.front().row->name;
  EXPECT_TRUE(best == "torus2d" || best == "torus" || best == "hierarchical") << best;
}

TEST(Tiers, MeasurementIsExactOnVirtualClock) {
  auto network = net::VirtualNetwork::nodes(4, 2, {2'000'000, 100}, {30'000'000, 800});
  net::run_threads(
      4,
      [&](net::World& world) {
        CommOptions options;
        options.transport = "virtual";
        auto comm = make_communicator(world, world.world_group(), options);
        std::vector<float> data(1000, 1.0f);
        comm->all_reduce(data.data(), data.data(), data.size(), DType::f32, ReduceOp::sum);
        Call call;
        call.op = Op::all_reduce;
        call.in = call.out = data.data();
        call.count = data.size();
        std::string why = comm->explain(call);
        EXPECT_NE(why.find("as measured"), std::string::npos) << why;
        EXPECT_NE(why.find("across hosts alpha 30 us, 1.25 GB/s"), std::string::npos) << why;
      },
      {}, network);
}

}  // namespace
}  // namespace esp::comm
