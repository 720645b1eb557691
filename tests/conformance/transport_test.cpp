// Behaviour of every transport without faults.
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "esp/base/rng.h"
#include "tests/conformance/suite.h"

namespace esp::net {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

class TransportDelivery : public TransportSuite {};
ESP_INSTANTIATE_FOR_ALL_TRANSPORTS(TransportDelivery);

// Size of message `number` of a pair of ranks; sender and receiver compute the same value. Random: mostly small, some
// large, some near typical limits.
size_t random_size(int from, int to, uint64_t number) {
  constexpr size_t kEdges[] = {0, 1, 2, 63, 64, 65, 207, 208, 209, 4095, 4096, 4097, 65535, 65536, 65537, 200'001};
  uint64_t draw = random_bits(number, static_cast<uint64_t>(from) * 64 + static_cast<uint64_t>(to), 9);
  if (draw % 3 == 0) return kEdges[(draw >> 8) % std::size(kEdges)];
  return (draw >> 8) % (size_t{1} << (draw % 17));
}

TEST_P(TransportDelivery, DeliversMessagesOfEdgeSizes) {
  run(2, [&](const World& world, const Group& group) {
    auto transport = open(world, group);
    TestTransfers transfers(*transport);
    uint64_t number = 0;
    for (size_t bytes : {size_t{0}, size_t{1}, size_t{63}, size_t{64}, size_t{65}, size_t{208}, size_t{209}, kMiB - 1,
                         kMiB, kMiB + 3, 5 * kMiB + 7}) {
      if (group.rank == 0) transfers.send(1, number, bytes);
      if (group.rank == 1) transfers.receive(0, number, bytes);
      ++number;
    }
    transfers.finish();
  });
}

TEST_P(TransportDelivery, DeliversMessagesOfPairInOrder) {
  run(2, [&](const World& world, const Group& group) {
    auto transport = open(world, group);
    for (uint64_t batch = 0; batch < 10; ++batch) {
      TestTransfers transfers(*transport);
      for (uint64_t number = batch * 50; number < batch * 50 + 50; ++number) {
        size_t bytes = random_size(0, 1, number);
        if (group.rank == 0) transfers.send(1, number, bytes);
        if (group.rank == 1) transfers.receive(0, number, bytes);
      }
      transfers.finish();
    }
  });
}

TEST_P(TransportDelivery, DeliversMessagesSentBeforeReceiveIsPosted) {
  run(2, [&](const World& world, const Group& group) {
    auto transport = open(world, group);
    TestTransfers transfers(*transport);
    // Rank 0 receives only after its sends are posted; rank 1 posts its receives last.
    if (group.rank == 0) {
      for (uint64_t number = 0; number < 40; ++number) transfers.send(1, number, 1000);
      transfers.receive(1, 0, 8);
    } else {
      transfers.send(0, 0, 8);
      for (uint64_t number = 0; number < 40; ++number) transfers.receive(0, number, 1000);
    }
    transfers.finish();
  });
}

TEST_P(TransportDelivery, DeliversLargeMessagesInBothDirections) {
  run(2, [&](const World& world, const Group& group) {
    auto transport = open(world, group);
    for (uint64_t round = 0; round < 3; ++round) {
      TestTransfers transfers(*transport);
      for (uint64_t number = 0; number < 2; ++number) {
        transfers.send(1 - group.rank, 2 * round + number, 6 * kMiB + 5);
        transfers.receive(1 - group.rank, 2 * round + number, 6 * kMiB + 5);
      }
      transfers.finish();
    }
  });
}

TEST_P(TransportDelivery, DeliversAllToAll) {
  run(8, [&](const World& world, const Group& group) {
    auto transport = open(world, group);
    for (uint64_t round = 0; round < 6; ++round) {
      TestTransfers transfers(*transport);
      for (int step = 1; step < group.size(); ++step) {
        int to = (group.rank + step) % group.size(), from = (group.rank + group.size() - step) % group.size();
        transfers.send(to, round, random_size(group.rank, to, round));
        transfers.receive(from, round, random_size(from, group.rank, round));
      }
      transfers.finish();
    }
  });
}

TEST_P(TransportDelivery, DeliversAroundRingWhenRanksOutnumberCores) {
  run(16, [&](const World& world, const Group& group) {
    auto transport = open(world, group);
    for (uint64_t round = 0; round < 30; ++round) {
      TestTransfers transfers(*transport);
      transfers.send((group.rank + 1) % group.size(), round, 100'000);
      transfers.receive((group.rank + group.size() - 1) % group.size(), round, 100'000);
      transfers.finish();
    }
  });
}

struct Pieces {
  const std::byte* begin = nullptr;
  size_t next = 0;
  bool ended = false;
};

// An `apply` function that copies. It also checks the contract: blocks are consecutive, and all but the last are
// multiples of 64 bytes.
void copy_and_check(const void* context, std::byte* dst, const std::byte* src, size_t bytes) {
  auto& pieces = *const_cast<Pieces*>(static_cast<const Pieces*>(context));
  if (!pieces.begin) pieces.begin = dst;
  EXPECT_EQ(dst, pieces.begin + pieces.next) << "pieces must be consecutive";
  EXPECT_FALSE(pieces.ended) << "only the last piece may have a size that is not a multiple of 64";
  EXPECT_EQ(pieces.next % 64, 0u);
  pieces.ended = bytes % 64 != 0;
  pieces.next += bytes;
  std::copy(src, src + bytes, dst);
}

TEST_P(TransportDelivery, PassesWholeCacheLinesToApply) {
  run(2, [&](const World& world, const Group& group) {
    auto transport = open(world, group);
    uint64_t number = 0;
    for (size_t bytes : {size_t{1}, size_t{64}, size_t{100}, size_t{209}, size_t{70'001}, kMiB + 3}) {
      TestTransfers transfers(*transport);
      Pieces pieces;
      if (group.rank == 0) transfers.send(1, number, bytes);
      if (group.rank == 1) transfers.receive(0, number, bytes, copy_and_check, &pieces);
      transfers.finish();
      EXPECT_EQ(pieces.next, group.rank == 1 ? bytes : 0);
      ++number;
    }
  });
}

void add_ints(const void*, std::byte* dst, const std::byte* src, size_t bytes) {
  for (size_t i = 0; i < bytes; i += sizeof(uint32_t)) {
    uint32_t a, b;
    __builtin_memcpy(&a, dst + i, sizeof a);
    __builtin_memcpy(&b, src + i, sizeof b);
    a += b;
    __builtin_memcpy(dst + i, &a, sizeof a);
  }
}

TEST_P(TransportDelivery, ReducesInBothDirections) {
  run(2, [&](const World& world, const Group& group) {
    auto transport = open(world, group);
    std::vector<uint32_t> mine(700'001), sum(mine.size());
    for (size_t i = 0; i < mine.size(); ++i) {
      mine[i] = static_cast<uint32_t>(i * (static_cast<size_t>(group.rank) + 1));
      sum[i] = mine[i];
    }
    Transfer out{.peer = 1 - group.rank, .data = reinterpret_cast<std::byte*>(mine.data()), .bytes = mine.size() * 4};
    Transfer in{.peer = 1 - group.rank, .data = reinterpret_cast<std::byte*>(sum.data()), .bytes = sum.size() * 4};
    in.apply = add_ints;
    transport->send(out);
    transport->receive(in);
    Deadline deadline = Deadline::after_ms(60'000);
    wait_for_transfer(*transport, in, deadline);
    wait_for_transfer(*transport, out, deadline);
    ASSERT_EQ(in.state, Transfer::State::done);
    ASSERT_EQ(out.state, Transfer::State::done);
    for (size_t i = 0; i < sum.size(); ++i) ASSERT_EQ(sum[i], static_cast<uint32_t>(3 * i));
  });
}

TEST_P(TransportDelivery, CountersMatchTraffic) {
  run(3, [&](const World& world, const Group& group) {
    auto transport = open(world, group);
    TestTransfers transfers(*transport);
    if (group.rank == 0) {
      for (uint64_t number = 0; number < 5; ++number) transfers.send(1, number, number * 1000);
      transfers.send(2, 0, 0);
    }
    if (group.rank == 1) {
      for (uint64_t number = 0; number < 5; ++number) transfers.receive(0, number, number * 1000);
      transfers.send(2, 0, kMiB);
    }
    if (group.rank == 2) {
      transfers.receive(0, 0, 0);
      transfers.receive(1, 0, kMiB);
    }
    transfers.finish();
    auto expect_traffic = [&](int peer, uint64_t sent, uint64_t messages_sent, uint64_t received,
                              uint64_t messages_received) {
      const Traffic& traffic = transport->traffic(peer);
      EXPECT_EQ(traffic.bytes_sent, sent);
      EXPECT_EQ(traffic.messages_sent, messages_sent);
      EXPECT_EQ(traffic.bytes_received, received);
      EXPECT_EQ(traffic.messages_received, messages_received);
    };
    if (group.rank == 0) expect_traffic(1, 10'000, 5, 0, 0), expect_traffic(2, 0, 1, 0, 0);
    if (group.rank == 1) expect_traffic(0, 0, 0, 10'000, 5), expect_traffic(2, kMiB, 1, 0, 0);
    if (group.rank == 2) expect_traffic(0, 0, 0, 0, 1), expect_traffic(1, 0, 0, kMiB, 1);
    Traffic total = transport->total();
    EXPECT_EQ(total.bytes_sent, group.rank == 0 ? 10'000u : group.rank == 1 ? kMiB : 0u);
    EXPECT_EQ(total.messages_sent, group.rank == 0 ? 6u : group.rank == 1 ? 1u : 0u);
    EXPECT_EQ(total.bytes_received, group.rank == 1 ? 10'000u : group.rank == 2 ? kMiB : 0u);
    EXPECT_EQ(total.messages_received, group.rank == 1 ? 5u : group.rank == 2 ? 2u : 0u);
  });
}

TEST_P(TransportDelivery, UsesRankOrderOfSubGroup) {
  run(5, [&](const World& world, const Group& group) {
    // The sub-group lists its members (world ranks) in descending order, so its ranks are in the reverse order of the
    // world ranks.
    std::vector<int> places = group.rank % 2 == 0 ? std::vector<int>{4, 2, 0} : std::vector<int>{3, 1};
    Group part = second_group(group, group.rank % 2 == 0 ? 1 : 2);
    part.members.clear();
    for (int place : places) part.members.push_back(group.members[static_cast<size_t>(place)]);
    part.rank = static_cast<int>(std::find(places.begin(), places.end(), group.rank) - places.begin());
    auto within = open(world, part);
    auto whole = open(world, group);
    for (Transport* transport : {within.get(), whole.get(), within.get()}) {
      TestTransfers transfers(*transport);
      int size = transport->size(), rank = transport->rank();
      transfers.send((rank + 1) % size, 1, 5000);
      transfers.receive((rank + size - 1) % size, 1, 5000);
      transfers.finish();
    }
  });
}

TEST_P(TransportDelivery, WorksAfterGroupIsReopened) {
  run(3, [&](const World& world, const Group& group) {
    for (uint64_t opening = 0; opening < 4; ++opening) {
      auto transport = open(world, group);
      TestTransfers transfers(*transport);
      transfers.send((group.rank + 1) % 3, opening, 300);
      transfers.receive((group.rank + 2) % 3, opening, 300);
      transfers.finish();
    }
  });
}

TEST_P(TransportDelivery, WorksOnSeveralThreadsWithOneTransportEach) {
  run(2, [&](const World& world, const Group& group) {
    std::vector<std::unique_ptr<Transport>> transports;
    for (uint64_t which = 0; which < 3; ++which) transports.push_back(open(world, second_group(group, which)));
    std::vector<std::jthread> threads;
    for (auto& transport : transports) {
      threads.emplace_back([&] {
        for (uint64_t round = 0; round < 40; ++round) {
          TestTransfers transfers(*transport);
          transfers.send(1 - group.rank, round, random_size(group.rank, 1 - group.rank, round));
          transfers.receive(1 - group.rank, round, random_size(1 - group.rank, group.rank, round));
          transfers.finish();
        }
      });
    }
  });
}

TEST_P(TransportDelivery, SendsNothingInGroupOfOne) {
  run(1, [&](const World& world, const Group& group) {
    auto transport = open(world, group);
    EXPECT_FALSE(transport->poll());
    transport->sleep(Deadline::after_ms(1));
    EXPECT_EQ(transport->total().messages_sent, 0u);
  });
}

}  // namespace
}  // namespace esp::net
