#include "esp/net/inproc/inproc.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <stdexcept>

#include "esp/base/error.h"
#include "esp/net/inproc/threads.h"

namespace esp::net {
namespace {

void drive(Transport& transport, std::initializer_list<const Transfer*> transfers) {
  Deadline deadline = Deadline::after_ms(20'000);
  for (const Transfer* transfer : transfers)
    while (transfer->state == Transfer::State::posted && !deadline.passed())
      if (!transport.poll()) transport.sleep(deadline);
}

TEST(Inproc, ReceiverReducesFromSenderBuffer) {
  std::atomic<const std::byte*> sent_from{nullptr};
  run_threads(2, [&](World& world) {
    auto transport = open_inproc(world, world.world_group());
    std::vector<std::byte> data(1000, std::byte{3});
    Transfer transfer{.peer = 1 - world.rank, .data = data.data(), .bytes = data.size()};
    if (world.rank == 0) {
      sent_from = data.data();
      transport->send(transfer);
    } else {
      static thread_local const std::byte* seen;
      seen = nullptr;
      transfer.apply = [](const void*, std::byte*, const std::byte* src, size_t) { seen = seen ? seen : src; };
      transport->receive(transfer);
      drive(*transport, {&transfer});
      EXPECT_EQ(seen, sent_from.load());
      return;
    }
    drive(*transport, {&transfer});
    EXPECT_EQ(transfer.state, Transfer::State::done);
  });
}

TEST(Inproc, OneThreadDrivesSeveralRanks) {
  std::vector<World> worlds = thread_worlds(3);
  std::vector<std::unique_ptr<Transport>> transports;
  for (World& world : worlds) transports.push_back(open_inproc(world, world.world_group()));
  std::vector<int> value = {10, 20, 30}, got(3);
  std::vector<Transfer> sends(3), receives(3);
  for (int rank = 0; rank < 3; ++rank) {
    auto at = static_cast<size_t>(rank);
    sends[at] = {.peer = (rank + 1) % 3, .data = reinterpret_cast<std::byte*>(&value[at]), .bytes = sizeof(int)};
    receives[at] = {.peer = (rank + 2) % 3, .data = reinterpret_cast<std::byte*>(&got[at]), .bytes = sizeof(int)};
    transports[at]->send(sends[at]);
    transports[at]->receive(receives[at]);
  }
  for (int round = 0; round < 3; ++round)
    for (auto& transport : transports) transport->poll();
  for (const Transfer& transfer : sends) EXPECT_EQ(transfer.state, Transfer::State::done);
  EXPECT_EQ(got, (std::vector<int>{30, 10, 20}));
}

TEST(Inproc, QueuesSendsInOrderWhenRingIsFull) {
  run_threads(2, [](World& world) {
    auto transport = open_inproc(world, world.world_group());
    std::vector<int> values(100);
    if (world.rank == 0) std::iota(values.begin(), values.end(), 0);
    std::vector<Transfer> transfers(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      transfers[i] = {.peer = 1 - world.rank, .data = reinterpret_cast<std::byte*>(&values[i]), .bytes = sizeof(int)};
      if (world.rank == 0) transport->send(transfers[i]);
      if (world.rank == 1) transport->receive(transfers[i]);
    }
    for (Transfer& transfer : transfers) drive(*transport, {&transfer});
    for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], static_cast<int>(i));
  });
}

TEST(RunThreads, ReleasesPeersAndRethrowsCauseWhenRankThrows) {
  std::atomic<int> released{0};
  auto body = [&](World& world) {
    auto transport = open_inproc(world, world.world_group());
    if (world.rank == 2) throw std::runtime_error("the cause");
    std::byte byte{};
    Transfer transfer{.peer = 2, .data = &byte, .bytes = 1};
    transport->receive(transfer);
    try {
      drive(*transport, {&transfer});
    } catch (const CommError& error) {
      EXPECT_EQ(error.kind(), CommError::Kind::lost);
      EXPECT_EQ(error.peer(), 2);
      ++released;
      throw;
    }
  };
  try {
    run_threads(4, body);
    FAIL() << "nothing was rethrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "the cause");
  }
  EXPECT_EQ(released, 3);
}

TEST(Inproc, AbandonedSendReleasesBuffer) {
  std::vector<World> worlds = thread_worlds(2);
  auto sender = open_inproc(worlds[0], worlds[0].world_group());
  auto receiver = open_inproc(worlds[1], worlds[1].world_group());
  int got = 7;
  {
    auto value = std::make_unique<int>(5);
    Transfer send{.peer = 1, .data = reinterpret_cast<std::byte*>(value.get()), .bytes = sizeof(int)};
    sender->send(send);
    sender->abandon();
  }
  Transfer receive{.peer = 0, .data = reinterpret_cast<std::byte*>(&got), .bytes = sizeof(int)};
  receiver->receive(receive);
  EXPECT_FALSE(receiver->poll());
  EXPECT_EQ(receive.state, Transfer::State::posted);
  EXPECT_EQ(got, 7);
}

TEST(Inproc, DeliversMessagesSentBeforePeerLeft) {
  std::vector<World> worlds = thread_worlds(2);
  auto sender = open_inproc(worlds[0], worlds[0].world_group());
  auto receiver = open_inproc(worlds[1], worlds[1].world_group());
  std::byte sent{9}, got{};
  Transfer send{.peer = 1, .data = &sent, .bytes = 1}, receive{.peer = 0, .data = &got, .bytes = 1};
  sender->send(send);
  worlds[1].peer_status->mark_left(0);
  receiver->receive(receive);
  EXPECT_TRUE(receiver->poll());
  EXPECT_EQ(got, std::byte{9});
  receiver->receive(receive);
  try {
    receiver->poll();
    FAIL() << "the receive waits for a peer that has left";
  } catch (const CommError& error) {
    EXPECT_EQ(error.kind(), CommError::Kind::lost);
    EXPECT_EQ(error.peer(), 0);
  }
}

TEST(Inproc, OpensIndependentTransportsForOneGroup) {
  std::vector<World> worlds = thread_worlds(2);
  std::vector<std::unique_ptr<Transport>> first, second;
  for (World& world : worlds) first.push_back(open_inproc(world, world.world_group()));
  for (World& world : worlds) second.push_back(open_inproc(world, world.world_group()));
  std::byte a{1}, b{2}, got_a{}, got_b{};
  Transfer send_a{.peer = 1, .data = &a, .bytes = 1}, send_b{.peer = 1, .data = &b, .bytes = 1};
  Transfer receive_a{.peer = 0, .data = &got_a, .bytes = 1}, receive_b{.peer = 0, .data = &got_b, .bytes = 1};
  first[0]->send(send_a);
  second[0]->send(send_b);
  second[1]->receive(receive_b);
  first[1]->receive(receive_a);
  second[1]->poll();
  first[1]->poll();
  EXPECT_EQ(got_a, a);
  EXPECT_EQ(got_b, b);
  first[0]->poll();
  second[0]->poll();
}

}  // namespace
}  // namespace esp::net
