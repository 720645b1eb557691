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

// Parking-lot topology (Bertsekas and Gallager): the long flow gets its fair share on every link, the short flows get
// the rest.
TEST(FairShare, LongFlowGetsFairShareOfEveryLink) {
  const Routes routes = {{0, 1, 2}, {0}, {1}, {2}};
  EXPECT_EQ(max_min_rates(routes, std::vector<double>{1, 1, 1}), (std::vector<double>{0.5, 0.5, 0.5, 0.5}));
  // The middle link is slower, so the flows on the outer links get the capacity that the long flow cannot use.
  EXPECT_EQ(max_min_rates(routes, std::vector<double>{10, 2, 10}), (std::vector<double>{1, 9, 1, 9}));
}

// Three flows share a link of 9; one of them is limited to 1 by another link. The other two get 4 each.
TEST(FairShare, OtherFlowsGetUnusedCapacity) {
  const Routes routes = {{0, 1}, {0}, {0}};
  EXPECT_EQ(max_min_rates(routes, std::vector<double>{9, 1}), (std::vector<double>{1, 4, 4}));
}

TEST(FairShare, FlowWithoutLinksHasInfiniteRate) {
  const Routes routes = {{}, {0}};
  const auto rates = max_min_rates(routes, std::vector<double>{3});
  EXPECT_TRUE(rates[0] > 1e300);
  EXPECT_EQ(rates[1], 3);
}

TEST(EventEngine, StreamRunsTasksInOrder) {
  EventEngine engine;
  const StreamId stream = engine.add_stream();
  const TaskId late = engine.compute(engine.add_stream(), 5);
  const TaskId a = engine.compute(stream, 2), b = engine.compute(stream, 3), c = engine.compute(stream, 1);
  engine.add_dependency(b, late);
  EXPECT_EQ(engine.run(), 9);
  EXPECT_EQ(engine.end_time(a), 2);
  EXPECT_EQ(engine.begin_time(b), 5);
  EXPECT_EQ(engine.begin_time(c), 8);
  EXPECT_EQ(engine.busy_time(stream), 6);
}

// Two flows share a link: each gets half of the rate until the smaller flow ends; then the other gets the whole rate.
TEST(EventEngine, TwoFlowsShareLinkUntilOneEnds) {
  EventEngine engine;
  const RouteId route = engine.add_route({engine.add_link(10)});
  const TaskId small = engine.message(engine.add_stream(), engine.add_stream(), route, 1, 100);
  const TaskId large = engine.message(engine.add_stream(), engine.add_stream(), route, 1, 300);
  EXPECT_EQ(engine.run(), 41);            // latency 1 + 400 bytes / rate 10: the link is never idle
  EXPECT_EQ(engine.end_time(small), 21);  // latency 1 + 100 bytes / rate 5
  EXPECT_EQ(engine.end_time(large), 41);  // 100 bytes are sent by time 21, the other 200 at rate 10
  EXPECT_EQ(engine.bytes_carried(0), 400);
  EXPECT_EQ(engine.link_busy_time(0), 40);
}

TEST(EventEngine, LaterFlowSlowsAnEarlierOne) {
  EventEngine engine;
  const RouteId route = engine.add_route({engine.add_link(10)});
  const TaskId first = engine.transfer(route, 0, 100);
  const TaskId second = engine.transfer(route, 5, 25);
  engine.run();
  EXPECT_EQ(engine.end_time(second), 10);   // starts at 5, then 25 bytes / rate 5
  EXPECT_EQ(engine.end_time(first), 12.5);  // 50 bytes by time 5, then 25 in 5 s at rate 5, then 25 at rate 10
}

TEST(EventEngine, ReportsPeakMemory) {
  EventEngine engine;
  const StreamId stream = engine.add_stream();
  const uint32_t place = engine.add_memory();
  const TaskId f0 = engine.compute(stream, 1), f1 = engine.compute(stream, 1);
  const TaskId b0 = engine.compute(stream, 2), b1 = engine.compute(stream, 2);
  for (const TaskId f : {f0, f1}) engine.allocate(f, place, 10);
  for (const TaskId b : {b0, b1}) engine.free(b, place, 10);
  engine.allocate(b0, place, 3);
  engine.free(b0, place, 3);
  engine.run();
  EXPECT_EQ(engine.peak_bytes_of(place), 23);
}

TEST(EventEngine, RejectsDependencyCycles) {
  EventEngine engine;
  const TaskId a = engine.join(), b = engine.join();
  engine.add_dependency(a, b);
  engine.add_dependency(b, a);
  EXPECT_THROW(engine.run(), UsageError);
}

// Parameter server with three layers: forward and backward take 1 s per layer; push and pull take 1, 1 and 4 s, in
// partitions of 1 s on one link. With a FIFO link an iteration takes 10 s, with priority by layer 8 s (Jayarajan et al.
// 2019, P3).
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
      engine.add_dependency(arrived[layer].back(), backward);
    }
  }
  for (const auto& partitions : arrived) {
    const TaskId forward = engine.compute(worker, 1);
    for (const TaskId partition : partitions) engine.add_dependency(forward, partition);
  }
  return engine.run();
}

TEST(EventEngine, PriorityQueueShortensParameterServerIterationFrom10To8) {
  EXPECT_EQ(parameter_server_iteration(false), 10);
  EXPECT_EQ(parameter_server_iteration(true), 8);
}

}  // namespace
}  // namespace esp::plan
