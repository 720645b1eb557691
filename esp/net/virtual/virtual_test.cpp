#include "esp/net/virtual/virtual.h"

#include <gtest/gtest.h>

#include <vector>

#include "esp/base/error.h"
#include "esp/net/inproc/threads.h"
#include "esp/net/virtual/network.h"

namespace esp::net {
namespace {

// 1 µs per message and 3 ps per byte: sums are easy to check by hand, and both parts are visible in them.
constexpr LinkCost kCost{.alpha_ps = 1'000'000, .beta_ps_per_byte = 3};

// One rank: posts transfers in order, waits for them, and reads their times.
class Ports {
 public:
  explicit Ports(const World& world) : transport_(open_virtual(world, world.world_group())) {}

  Transfer& send(int peer, size_t bytes, int64_t ready_ps = 0) { return post(peer, bytes, ready_ps, true); }
  Transfer& receive(int peer, size_t bytes, int64_t ready_ps = 0) { return post(peer, bytes, ready_ps, false); }
  int64_t end_of(const Transfer& transfer) {
    Deadline deadline = Deadline::after_ms(20'000);
    while (transfer.state == Transfer::State::posted && !deadline.passed())
      if (!transport_->poll()) transport_->sleep(deadline);
    EXPECT_EQ(transfer.state, Transfer::State::done);
    return transfer.end_ps;
  }
  int64_t clock_ps() const { return transport_->clock_ps(); }

 private:
  Transfer& post(int peer, size_t bytes, int64_t ready_ps, bool sends) {
    buffers_.push_back(std::make_unique<std::vector<std::byte>>(bytes));
    transfers_.push_back(std::make_unique<Transfer>());
    Transfer& transfer = *transfers_.back();
    transfer = {.peer = peer, .data = buffers_.back()->data(), .bytes = bytes, .ready_ps = ready_ps};
    sends ? transport_->send(transfer) : transport_->receive(transfer);
    return transfer;
  }
  std::vector<std::unique_ptr<std::vector<std::byte>>> buffers_;
  std::vector<std::unique_ptr<Transfer>> transfers_;
  std::unique_ptr<Transport> transport_;  // destroyed before the buffers
};

TEST(VirtualClock, ChainTimeIsSumOfLinks) {
  auto network = VirtualNetwork::flat(4, kCost);
  run_threads(
      4,
      [](World& world) {
        Ports ports(world);
        int64_t ready = 0;
        if (world.rank > 0) ready = ports.end_of(ports.receive(world.rank - 1, 1000));
        if (world.rank < 3) ports.end_of(ports.send(world.rank + 1, 1000, ready));
        // A link takes 1'000'000 + 3·1000 ps. The last rank ends with its receive, the others with their send.
        EXPECT_EQ(ports.clock_ps(), 1'003'000 * std::min(world.rank + 1, 3));
      },
      {}, network);
  EXPECT_EQ(network->job_ps(), 3 * 1'003'000);
}

TEST(VirtualClock, ExchangeIsFullDuplex) {
  auto network = VirtualNetwork::flat(2, kCost);
  run_threads(
      2,
      [](World& world) {
        Ports ports(world);
        Transfer& out = ports.send(1 - world.rank, 500'000);
        Transfer& in = ports.receive(1 - world.rank, 500'000);
        EXPECT_EQ(ports.end_of(out), 2'500'000);
        EXPECT_EQ(ports.end_of(in), 2'500'000);
      },
      {}, network);
  EXPECT_EQ(network->job_ps(), 2'500'000);
}

TEST(VirtualClock, ManySendersQueueAtOnePort) {
  auto network = VirtualNetwork::flat(4, kCost);
  run_threads(
      4,
      [](World& world) {
        Ports ports(world);
        if (world.rank == 0) {
          // Receives are served in the order in which they were issued, not in the order in which messages arrive.
          Transfer& third = ports.receive(3, 100);
          Transfer& first = ports.receive(1, 100);
          Transfer& second = ports.receive(2, 0);
          EXPECT_EQ(ports.end_of(third), 1'000'300);
          EXPECT_EQ(ports.end_of(first), 2'000'600);
          EXPECT_EQ(ports.end_of(second), 3'000'600);
        } else {
          constexpr int64_t kEnds[] = {0, 2'000'600, 3'000'600, 1'000'300};
          EXPECT_EQ(ports.end_of(ports.send(0, world.rank == 2 ? 0 : 100)), kEnds[world.rank]);
        }
      },
      {}, network);
}

TEST(VirtualClock, SenderServesReceiversInIssueOrder) {
  auto network = VirtualNetwork::flat(3, kCost);
  run_threads(
      3,
      [](World& world) {
        Ports ports(world);
        if (world.rank == 0) {
          Transfer& a = ports.send(2, 1'000'000);
          Transfer& b = ports.send(1, 10);
          EXPECT_EQ(ports.end_of(a), 4'000'000);
          EXPECT_EQ(ports.end_of(b), 5'000'030);
        } else {
          ports.end_of(ports.receive(0, world.rank == 1 ? 10 : 1'000'000));
        }
      },
      {}, network);
  EXPECT_EQ(network->clock_ps(1), 5'000'030);
  EXPECT_EQ(network->clock_ps(2), 4'000'000);
}

TEST(VirtualClock, MessageStartsWhenBothEndsAreReady) {
  auto network = VirtualNetwork::flat(2, kCost);
  run_threads(
      2,
      [](World& world) {
        Ports ports(world);
        Transfer& early = world.rank == 0 ? ports.send(1, 0, 70) : ports.receive(0, 0, 7'000'000);
        EXPECT_EQ(ports.end_of(early), 8'000'000);
        Transfer& late = world.rank == 0 ? ports.send(1, 0, 9'000'000) : ports.receive(0, 0, 60);
        EXPECT_EQ(ports.end_of(late), 10'000'000);
      },
      {}, network);
}

TEST(VirtualClock, UsesCostOfEachTier) {
  auto network = VirtualNetwork::nodes(4, 2, {.alpha_ps = 100, .beta_ps_per_byte = 1}, kCost);
  run_threads(
      4,
      [](World& world) {
        EXPECT_EQ(world.same_host(0, 1), true);
        EXPECT_EQ(world.same_host(1, 2), false);
        Ports ports(world);
        // The first round exchanges within nodes, the second between nodes.
        int near = world.rank ^ 1, far = world.rank ^ 2;
        Transfer& a = ports.send(near, 50);
        Transfer& b = ports.receive(near, 50);
        int64_t first = std::max(ports.end_of(a), ports.end_of(b));
        EXPECT_EQ(first, 150);
        Transfer& c = ports.send(far, 50, first);
        Transfer& d = ports.receive(far, 50, first);
        EXPECT_EQ(std::max(ports.end_of(c), ports.end_of(d)), 150 + 1'000'150);
      },
      {}, network);
}

// 8 ranks, all-to-all with three different orders of message sizes: the times must not depend on thread scheduling.
TEST(VirtualClock, TimesDoNotDependOnThreadScheduling) {
  auto times = [] {
    auto network = VirtualNetwork::nodes(8, 4, {.alpha_ps = 777, .beta_ps_per_byte = 2}, kCost);
    run_threads(
        8,
        [](World& world) {
          Ports ports(world);
          int64_t ready = 0;
          for (int step = 1; step < 8; ++step) {
            int to = (world.rank + step) % 8, from = (world.rank + 8 - step) % 8;
            Transfer& out = ports.send(to, static_cast<size_t>(world.rank * 100 + to), ready);
            Transfer& in = ports.receive(from, static_cast<size_t>(from * 100 + world.rank), ready);
            if (step % 3 == world.rank % 3) ready = std::max(ports.end_of(in), ports.end_of(out));
            if (step == 7) ports.end_of(in), ports.end_of(out);
          }
        },
        {}, network);
    std::vector<int64_t> clocks;
    for (int rank = 0; rank < 8; ++rank) clocks.push_back(network->clock_ps(rank));
    return clocks;
  };
  auto first = times();
  for (int i = 0; i < 30; ++i) ASSERT_EQ(times(), first);
}

TEST(VirtualClock, AutoSelectsVirtualTransportWhenWorldHasNetwork) {
  auto network = VirtualNetwork::nodes(4, 2, kCost, kCost);
  auto worlds = thread_worlds(4, {}, network);
  auto transport = open_transport("auto", worlds[0], worlds[0].world_group());
  EXPECT_EQ(transport->name(), "virtual");
  EXPECT_TRUE(transport->ordered());
}

TEST(VirtualClock, RejectsNetworkOfOtherSize) {
  EXPECT_THROW(thread_worlds(3, {}, VirtualNetwork::flat(4, kCost)), UsageError);
  EXPECT_THROW(VirtualNetwork::flat(2, {.alpha_ps = -1}), UsageError);
}

}  // namespace
}  // namespace esp::net
