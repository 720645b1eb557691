#include "esp/plan/simulate/event_engine.h"

#include <gtest/gtest.h>

#include "esp/base/error.h"
#include "esp/plan/simulate/fair_share.h"

namespace esp::plan {
namespace {

using Routes = std::vector<std::vector<uint32_t>>;

TEST(FairShare, SharesOneLinkEqually) {
  const Routes routes = {{0}, {0}, {0}, {0}};
  EXPECT_EQ(max_min_rates(routes, std::vector<double>{8}), (std::vector<double>{2, 2, 2, 2}));
}

// The parking lot of Bertsekas and Gallager: the long flow gets its fair share of every link, the short flows the rest.
TEST(FairShare, SharesTheParkingLotFairly) {
  const Routes routes = {{0, 1, 2}, {0}, {1}, {2}};
  EXPECT_EQ(max_min_rates(routes, std::vector<double>{1, 1, 1}), (std::vector<double>{0.5, 0.5, 0.5, 0.5}));
  // A slower link in the middle leaves capacity on the outer ones.
  EXPECT_EQ(max_min_rates(routes, std::vector<double>{10, 2, 10}), (std::vector<double>{1, 9, 1, 9}));
}

// Three flows on a link of 9, one of them limited to 1 elsewhere: the others get 4 each.
TEST(FairShare, RedistributesUnusedCapacity) {
  const Routes routes = {{0, 1}, {0}, {0}};
  EXPECT_EQ(max_min_rates(routes, std::vector<double>{9, 1}), (std::vector<double>{1, 4, 4}));
}

TEST(FairShare, IsInfiniteWithoutLinks) {
  const Routes routes = {{}, {0}};
  const auto rates = max_min_rates(routes, std::vector<double>{3});
  EXPECT_TRUE(rates[0] > 1e300);
  EXPECT_EQ(rates[1], 3);
}

TEST(EventEngine, RunsAStreamInOrder) {
  EventEngine engine;
  const StreamId stream = engine.add_stream();
  const TaskId late = engine.compute(engine.add_stream(), 5);
  const TaskId a = engine.compute(stream, 2), b = engine.compute(stream, 3), c = engine.compute(stream, 1);
  engine.after(b, late);
  EXPECT_EQ(engine.run(), 9);
  EXPECT_EQ(engine.end_of(a), 2);
  EXPECT_EQ(engine.begin_of(b), 5);
  EXPECT_EQ(engine.begin_of(c), 8);
  EXPECT_EQ(engine.busy_of(stream), 6);
}

// Two flows on one link: half each until the smaller ends, then all.
TEST(EventEngine, SharesALinkWhileTwoFlowsAreOnIt) {
  EventEngine engine;
  const RouteId route = engine.add_route({engine.add_link(10)});
  const TaskId small = engine.message(engine.add_stream(), engine.add_stream(), route, 1, 100);
  const TaskId large = engine.message(engine.add_stream(), engine.add_stream(), route, 1, 300);
  EXPECT_EQ(engine.run(), 41);          // 1 + 400/10: the link is never idle
  EXPECT_EQ(engine.end_of(small), 21);  // 1 + 100/5
  EXPECT_EQ(engine.end_of(large), 41);  // 100 by then, the other 200 at rate 10
  EXPECT_EQ(engine.carried_by(0), 400);
  EXPECT_EQ(engine.busy_link(0), 40);
}

TEST(EventEngine, LetsALaterFlowSlowAnEarlierOne) {
  EventEngine engine;
  const RouteId route = engine.add_route({engine.add_link(10)});
  const TaskId first = engine.transfer(route, 0, 100);
  const TaskId second = engine.transfer(route, 5, 25);
  engine.run();
  EXPECT_EQ(engine.end_of(second), 10);   // 5 + 25/5
  EXPECT_EQ(engine.end_of(first), 12.5);  // 50 by then, 25 in the shared 5, 25 at rate 10
}

TEST(EventEngine, ReportsPeakMemory) {
  EventEngine engine;
  const StreamId stream = engine.add_stream();
  const uint32_t place = engine.add_place();
  const TaskId f0 = engine.compute(stream, 1), f1 = engine.compute(stream, 1);
  const TaskId b0 = engine.compute(stream, 2), b1 = engine.compute(stream, 2);
  for (const TaskId f : {f0, f1}) engine.takes(f, place, 10);
  for (const TaskId b : {b0, b1}) engine.gives(b, place, 10);
  engine.takes(b0, place, 3);
  engine.gives(b0, place, 3);
  engine.run();
  EXPECT_EQ(engine.peak_of(place), 23);
}

TEST(EventEngine, RejectsDependencyCycles) {
  EventEngine engine;
  const TaskId a = engine.join(), b = engine.join();
  engine.after(a, b);
  engine.after(b, a);
  EXPECT_THROW(engine.run(), UsageError);
}

// Three layers, forward and backward of 1 each, push and pull of 1, 1 and 4, in unit partitions on one link: first in,
// first out takes 10, priority by layer 8 (Jayarajan et al. 2019, P3).
double parameter_server_iteration(bool by_priority) {
  EventEngine engine;
  const StreamId worker = engine.add_stream();
  const uint32_t link = engine.add_queue();
  const int units[] = {1, 1, 4};
  std::vector<TaskId> arrived[3];
  for (int layer = 2; layer >= 0; --layer) {
    const TaskId backward = engine.compute(worker, 1);
    for (int i = 0; i < units[layer]; ++i) {
      arrived[layer].push_back(engine.queued(link, 1, by_priority ? layer : 0));
      engine.after(arrived[layer].back(), backward);
    }
  }
  for (const auto& partitions : arrived) {
    const TaskId forward = engine.compute(worker, 1);
    for (const TaskId partition : partitions) engine.after(forward, partition);
  }
  return engine.run();
}

TEST(EventEngine, RunsTheParameterServerExampleIn10FifoAnd8ByPriority) {
  EXPECT_EQ(parameter_server_iteration(false), 10);
  EXPECT_EQ(parameter_server_iteration(true), 8);
}

}  // namespace
}  // namespace esp::plan
