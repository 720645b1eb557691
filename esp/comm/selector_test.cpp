#include "esp/comm/selector.h"

#include <gtest/gtest.h>

#include "esp/comm/algo/table.h"
#include "esp/comm/communicator.h"
#include "esp/net/inproc/threads.h"
#include "esp/net/virtual/network.h"

namespace esp::comm {
namespace {

Problem all_reduce_of(size_t count, int size) {
  Problem problem;
  problem.op = Op::all_reduce;
  problem.size = size;
  problem.count = count;
  return problem;
}

Links equal_links(Link link) {
  Links links;
  links.widest = Tier::network;
  links.tiers.links.fill(link);
  return links;
}

TEST(FitLink, FindsTheLineThatMadeTheTimes) {
  std::vector<double> bytes = {64, 8192, 131072, 1048576}, seconds;
  for (double x : bytes) seconds.push_back(5e-6 + x * 2e-10);
  Link link = fit_link(bytes, seconds);
  EXPECT_NEAR(link.alpha, 5e-6, 1e-12);
  EXPECT_NEAR(link.beta, 2e-10, 1e-16);
}

TEST(FitLink, IsNeverNegative) {
  Link falling = fit_link(std::vector<double>{1, 1000}, std::vector<double>{2e-6, 1e-6});
  EXPECT_GE(falling.alpha, 0);
  EXPECT_GE(falling.beta, 0);
  Link steep = fit_link(std::vector<double>{100, 1000}, std::vector<double>{1e-9, 1e-3});
  EXPECT_GE(steep.alpha, 0);
  EXPECT_GT(steep.beta, 0);
}

TEST(Selector, TakesFewMessagesWhenSmallAndFewBytesWhenLarge) {
  Links links = equal_links({20e-6, 1e-9});
  EXPECT_EQ(choose(all_reduce_of(4, 16), 4, links).name, "recursive_doubling");
  auto large = candidates(all_reduce_of(size_t{1} << 26, 16), 4, links);
  double bytes_bound = 2.0 * 15 / 16 * (size_t{1} << 28) * 1e-9;
  EXPECT_LT(large.front().seconds, bytes_bound * 1.1) << large.front().row->name;
}

TEST(Selector, IsTheArgminAndListsWhatDoesNotApply) {
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

TEST(Selector, PrefersTheNodeAwareAlgorithmWhereTheNetworkIsSlow) {
  Links links;
  links.widest = Tier::network;
  links.equal = false;
  links.tier = [](int a, int b) { return a / 3 == b / 3 ? Tier::host : Tier::network; };
  links.tiers.links = {Link{1e-6, 1e-10}, Link{1e-6, 1e-10}, Link{50e-6, 1e-8}};
  Problem problem = all_reduce_of(size_t{1} << 20, 9);
  problem.shape = {{3, 3}};
  auto sorted = candidates(problem, 4, links);
  double ring = 0;
  for (const Candidate& candidate : sorted)
    if (candidate.row->name == "ring") ring = candidate.seconds;
  EXPECT_LT(sorted.front().seconds, ring);
  std::string_view best = sorted.front().row->name;
  EXPECT_TRUE(best == "torus2d" || best == "torus" || best == "hierarchical") << best;
}

TEST(Tiers, AreMeasuredExactlyOnAVirtualClock) {
  auto network = net::VirtualNetwork::nodes(4, 2, {2'000'000, 100}, {30'000'000, 800});
  net::run_threads(
      4,
      [&](net::World& world) {
        CommOptions options;
        options.transport = "virtual";
        auto comm = make_communicator(world, world.everyone(), options);
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
