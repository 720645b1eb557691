#include "esp/net/tcp/tcp.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <thread>

#include "esp/base/error.h"
#include "esp/net/failure_detector.h"
#include "esp/net/tcp/frame.h"
#include "esp/net/tcp/test_world.h"

namespace esp::net {
namespace {

constexpr auto kLong = std::chrono::seconds(60);

using Body = std::function<void(World& world, Transport& transport)>;

// Runs ranks as threads, each with its own world, listener and connections. An exception in a rank fails the test.
void run_ranks(int size, const NetOptions& options, const Body& body, const std::string& address = "127.0.0.1",
               bool one_host = false, bool encrypted = false) {
  std::vector<std::unique_ptr<World>> worlds;
  std::vector<int> ports;
  for (int rank = 0; rank < size; ++rank) {
    worlds.push_back(make_listening_world(rank, size, options, address, encrypted));
    ports.push_back(worlds.back()->listener->port());
  }
  std::vector<std::thread> threads;
  for (auto& world : worlds) {
    set_peers(*world, ports, one_host);
    threads.emplace_back([&body, &world = *world] {
      try {
        auto transport = open_tcp(world, world.world_group());
        body(world, *transport);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << world.rank << ": " << error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

void wait_all(Transport& transport, std::span<Transfer*> transfers) {
  Deadline deadline = Deadline::after(kLong);
  auto open = [](const Transfer* t) { return t->state == Transfer::State::posted; };
  while (std::any_of(transfers.begin(), transfers.end(), open)) {
    if (!transport.poll()) transport.sleep(deadline);
    if (deadline.passed()) throw CommError(CommError::Kind::timeout, -1, "the test reached its deadline");
  }
}

void wait_all(Transport& transport, std::initializer_list<Transfer*> list) {
  std::vector<Transfer*> transfers(list);
  wait_all(transport, transfers);
}

std::vector<std::byte> pattern(size_t bytes, int seed) {
  std::vector<std::byte> data(bytes);
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(i * 31 + i / 251 + static_cast<size_t>(seed) * 7);
  return data;
}

Transfer transfer_of(int peer, std::vector<std::byte>& data, uint64_t sequence) {
  Transfer transfer;
  transfer.peer = peer;
  transfer.data = data.data();
  transfer.bytes = data.size();
  transfer.tag.sequence = sequence;
  return transfer;
}

void add_bytes(const void*, std::byte* dst, const std::byte* src, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i)
    dst[i] = static_cast<std::byte>(static_cast<int>(dst[i]) + static_cast<int>(src[i]));
}

const size_t kSizes[] = {
    0, 1, 63, 64, 65, 4000, 100'001, 65536, 262143, 256 * 1024, 300'000 + 7, (1 << 20) + 1, 5'000'000 + 3, 16 << 20};

// Every pair of ranks exchanges messages of every size, all posted at once. Half of the receives add instead of
// copying.
void exchange_everything(World& world, Transport& transport) {
  int size = transport.size();
  std::vector<std::vector<std::byte>> out, in;
  std::vector<Transfer> transfers;
  transfers.reserve(1000);
  std::vector<Transfer*> all;
  auto seed = [](int from, int to, size_t i) { return from * 100 + to * 10 + static_cast<int>(i); };
  uint64_t expected_bytes = 0;
  out.reserve(1000), in.reserve(1000);
  for (int peer = 0; peer < size; ++peer) {
    if (peer == world.rank) continue;
    for (size_t i = 0; i < std::size(kSizes); ++i) {
      expected_bytes += kSizes[i];
      out.push_back(pattern(kSizes[i], seed(world.rank, peer, i)));
      transfers.push_back(transfer_of(peer, out.back(), i));
      transport.send(transfers.back());
      in.push_back(pattern(kSizes[i], 3));
      transfers.push_back(transfer_of(peer, in.back(), i));
      if (i % 2) transfers.back().apply = add_bytes;
      transport.receive(transfers.back());
    }
  }
  for (Transfer& transfer : transfers) all.push_back(&transfer);
  wait_all(transport, all);
  size_t k = 0;
  for (int peer = 0; peer < size; ++peer) {
    if (peer == world.rank) continue;
    for (size_t i = 0; i < std::size(kSizes); ++i, ++k) {
      auto expected = pattern(kSizes[i], seed(peer, world.rank, i));
      if (i % 2) {
        auto before = pattern(kSizes[i], 3);
        add_bytes(nullptr, expected.data(), before.data(), expected.size());
      }
      EXPECT_TRUE(in[k] == expected) << "rank " << world.rank << " from " << peer << ", " << kSizes[i] << " bytes";
    }
  }
  Traffic total = transport.total();
  EXPECT_EQ(total.bytes_sent, expected_bytes);
  EXPECT_EQ(total.bytes_received, expected_bytes);
  EXPECT_EQ(total.messages_sent, std::size(kSizes) * static_cast<size_t>(size - 1));
  EXPECT_EQ(total.messages_received, total.messages_sent);
}

TEST(Tcp, ExchangesMessagesOfEverySizeBetweenThreeRanks) {
  run_ranks(3, {}, exchange_everything);
}

TEST(Tcp, ExchangesMessagesWithinOneHost) {
  run_ranks(2, {}, exchange_everything, "127.0.0.1", true);
}

TEST(Tcp, ExchangesMessagesOverOneAndOverFiveStreams) {
  for (int streams : {1, 5}) {
    NetOptions options;
    options.streams_per_peer = streams;
    run_ranks(2, options, exchange_everything);
  }
}

TEST(Tcp, ExchangesMessagesWithChecksums) {
  NetOptions options;
  options.payload_checksum = true;
  run_ranks(2, options, exchange_everything);
}

TEST(Tcp, ExchangesEncryptedMessages) {
  NetOptions options;
  options.payload_checksum = true;
  run_ranks(3, options, exchange_everything, "127.0.0.1", true, true);
}

TEST(Tcp, RejectsPeerThatDoesNotEncrypt) {
  NetOptions options;
  options.start_timeout = std::chrono::milliseconds(500);
  std::vector<std::unique_ptr<World>> worlds;
  for (int rank = 0; rank < 2; ++rank) worlds.push_back(make_listening_world(rank, 2, options, "127.0.0.1", rank == 0));
  for (auto& world : worlds) set_peers(*world, {worlds[0]->listener->port(), worlds[1]->listener->port()}, true);
  auto transport = open_tcp(*worlds[0], worlds[0]->world_group());
  std::vector<std::byte> data(10);
  Transfer out = transfer_of(1, data, 1);
  transport->send(out);
  EXPECT_THROW(wait_all(*transport, {&out}), CommError);
}

TEST(Tcp, ExchangesMessagesOverIpv6) {
  Socket probe(socket(AF_INET6, SOCK_STREAM, 0));
  sockaddr_in6 loopback{};
  loopback.sin6_family = AF_INET6;
  loopback.sin6_addr = in6addr_loopback;
  if (!probe || bind(probe.fd(), reinterpret_cast<sockaddr*>(&loopback), sizeof loopback) != 0)
    GTEST_SKIP() << "this machine has no IPv6 loopback";
  run_ranks(2, {}, exchange_everything, "::1");
}

TEST(Tcp, CountsHeadersPerFrame) {
  run_ranks(2, {}, [](World& world, Transport& transport) {
    std::vector<std::byte> small(100), large(kStripeFromBytes);
    Transfer a = transfer_of(1 - world.rank, small, 1), b = transfer_of(1 - world.rank, large, 2);
    for (Transfer* t : {&a, &b}) world.rank == 0 ? transport.send(*t) : transport.receive(*t);
    wait_all(transport, {&a, &b});
    if (world.rank == 0) {
      EXPECT_EQ(transport.total().header_bytes_sent, 3 * kFrameHeaderBytes);
    }
  });
}

TEST(Tcp, ApplyReceivesWholeCacheLines) {
  struct Seen {
    std::byte* begin;
    size_t bytes, pieces = 0;
  };
  run_ranks(2, {}, [](World& world, Transport& transport) {
    auto data = pattern(3'000'001, world.rank);
    Transfer t = transfer_of(1 - world.rank, data, 1);
    Seen seen{data.data(), data.size()};
    t.context = &seen;
    t.apply = [](const void* context, std::byte* dst, const std::byte*, size_t bytes) {
      auto& mine = *const_cast<Seen*>(static_cast<const Seen*>(context));
      size_t offset = static_cast<size_t>(dst - mine.begin);
      EXPECT_EQ(offset % 64, 0u);
      EXPECT_TRUE(bytes % 64 == 0 || offset + bytes == mine.bytes) << offset << " + " << bytes;
      ++mine.pieces;
    };
    world.rank == 0 ? transport.send(t) : transport.receive(t);
    wait_all(transport, {&t});
    if (world.rank == 1) {
      EXPECT_GE(seen.pieces, 12u);
    }
  });
}

// If a receive expects another size (larger, smaller, striped or not), it gets the tag and size of the message. The
// sender stays until the receiver has found the mismatch, because the other stripes may not have been read yet.
TEST(Tcp, ReportsTagAndSizeOfMismatchedMessage) {
  const std::pair<size_t, size_t> kSentAndExpected[] = {{100, 100},     {100, 0},       {0, 100},
                                                        {100, 1 << 20}, {1 << 20, 100}, {1 << 20, 2 << 20}};
  for (auto [sent, expected] : kSentAndExpected) {
    std::atomic<bool> reported = false;
    run_ranks(2, {}, [&, sent = sent, expected = expected](World& world, Transport& transport) {
      std::vector<std::byte> data(world.rank == 0 ? sent : expected), never(1);
      Transfer t = transfer_of(1 - world.rank, data, world.rank == 0 ? 5 : 6);
      Transfer next = transfer_of(1 - world.rank, never, 7);
      world.rank == 0 ? transport.send(t) : transport.receive(t);
      if (world.rank == 0) transport.receive(next);
      Deadline deadline = Deadline::after(kLong);
      while (!reported && !deadline.passed()) {
        if (!transport.poll()) transport.sleep(deadline.earlier(std::chrono::milliseconds(10)));
        if (world.rank == 1 && t.state != Transfer::State::posted) reported = true;
      }
      if (world.rank == 0) return;
      EXPECT_EQ(t.state, Transfer::State::mismatched);
      EXPECT_EQ(t.got.sequence, 5u);
      EXPECT_EQ(t.got_bytes, sent);
    });
  }
}

TEST(Tcp, KeepsOrderOfManySmallMessages) {
  run_ranks(4, {}, [](World& world, Transport& transport) {
    constexpr size_t kCount = 300;
    int to = (world.rank + 1) % 4, from = (world.rank + 3) % 4;
    std::vector<std::vector<std::byte>> out, in;
    for (size_t i = 0; i < kCount; ++i) out.push_back(pattern(i % 97, static_cast<int>(i))), in.emplace_back(i % 97);
    std::vector<Transfer> transfers(2 * kCount);
    std::vector<Transfer*> all;
    for (size_t i = 0; i < kCount; ++i) {
      transfers[2 * i] = transfer_of(to, out[i], i);
      transfers[2 * i + 1] = transfer_of(from, in[i], i);
      transport.send(transfers[2 * i]);
      transport.receive(transfers[2 * i + 1]);
      if (i % 5 == 0) transport.poll();
    }
    for (Transfer& t : transfers) all.push_back(&t);
    wait_all(transport, all);
    EXPECT_TRUE(in == out);
  });
}

TEST(Tcp, ErrorNamesPeerThatClosed) {
  run_ranks(2, {}, [](World& world, Transport& transport) {
    std::vector<std::byte> data(1000), never(1000);
    Transfer t = transfer_of(1 - world.rank, data, 1), u = transfer_of(1 - world.rank, never, 2);
    world.rank == 0 ? transport.send(t) : transport.receive(t);
    wait_all(transport, {&t});
    if (world.rank == 0) return;  // this destroys its transport and closes its connections
    transport.receive(u);
    try {
      wait_all(transport, {&u});
      FAIL() << "the closed connection was not detected";
    } catch (const CommError& error) {
      EXPECT_EQ(error.kind(), CommError::Kind::lost);
      EXPECT_EQ(error.peer(), 0);
      EXPECT_STREQ(error.what(), "rank 0 closed its connection");
    }
    EXPECT_TRUE(world.peer_status->is_lost(0));
    // A transport that is opened later must not connect to the lost rank.
    auto again = open_tcp(world, world.world_group());
    Transfer v = transfer_of(0, never, 3);
    again->receive(v);
    EXPECT_THROW(again->poll(), CommError);
  });
}

// A failure detector that runs a function when it is queried.
class StubFailureDetector final : public FailureDetector {
 public:
  explicit StubFailureDetector(std::function<void(const Group&)> when_asked) : when_asked_(std::move(when_asked)) {}
  void abort(uint64_t, const std::vector<int>&, const CommError&) override {}
  void register_position(uint64_t, const LiveCallPosition*) override {}
  void unregister_position(uint64_t) override {}
  std::vector<CallPosition> query_positions(const Group& group, Deadline) override {
    when_asked_(group);
    return std::vector<CallPosition>(group.members.size());
  }
  std::vector<std::pair<uint64_t, CallPosition>> local_positions() override { return {}; }

 private:
  std::function<void(const Group&)> when_asked_;
};

// Returns the error of rank 1 after rank 0 has closed its connections. `report` records the failure report, which
// arrives only together with the reply to the query.
std::string error_after_peer_closed(const std::function<void(PeerStatus&)>& report) {
  std::string reported;
  run_ranks(3, {}, [&](World& world, Transport& transport) {
    if (world.rank == 2) return;
    std::vector<std::byte> data(1000), never(1000);
    Transfer t = transfer_of(1 - world.rank, data, 1), u = transfer_of(1 - world.rank, never, 2);
    world.rank == 0 ? transport.send(t) : transport.receive(t);
    wait_all(transport, {&t});
    if (world.rank == 0) return;  // this destroys its transport and closes its connections
    std::vector<int> asked;
    world.failure_detector = std::make_shared<StubFailureDetector>([&](const Group& group) {
      asked = group.members;
      report(*world.peer_status);
    });
    transport.receive(u);
    try {
      wait_all(transport, {&u});
    } catch (const CommError& error) {
      reported = error.what();
    }
    EXPECT_EQ(asked, (std::vector<int>{1, 0}));
  });
  return reported;
}

TEST(Tcp, QueriesClosedPeerBeforeReportingItLost) {
  EXPECT_EQ(error_after_peer_closed([](PeerStatus& peer_status) { peer_status.mark_lost(2, "was killed"); }),
            "rank 2 was killed");
  EXPECT_EQ(error_after_peer_closed([](PeerStatus& peer_status) { peer_status.mark_left(0); }),
            "rank 0 has left the job");
  EXPECT_EQ(error_after_peer_closed([](PeerStatus&) {}), "rank 0 closed its connection");
}

TEST(Tcp, DeliversDataSentBeforePeerLeft) {
  run_ranks(2, {}, [](World& world, Transport& transport) {
    auto data = pattern(200'000, 1);
    std::vector<std::byte> got(data.size());
    Transfer t = transfer_of(1 - world.rank, world.rank == 0 ? data : got, 1);
    world.rank == 0 ? transport.send(t) : transport.receive(t);
    if (world.rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    wait_all(transport, {&t});
    if (world.rank == 1) {
      EXPECT_TRUE(got == data);
    }
  });
}

// Rank 2 waits for rank 1 only; the orderly exit of rank 0 must not affect it.
TEST(Tcp, IgnoresExitOfPeerWithoutTransfers) {
  run_ranks(3, {}, [](World& world, Transport& transport) {
    std::vector<std::byte> data(10), token(1);
    Transfer first = transfer_of(world.rank == 0 ? 2 : 0, token, 1);
    if (world.rank == 0) transport.send(first), wait_all(transport, {&first});
    if (world.rank == 2) transport.receive(first), wait_all(transport, {&first});
    if (world.rank == 0) return;
    Transfer t = transfer_of(3 - world.rank, data, 1);
    if (world.rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(150));
    world.rank == 1 ? transport.send(t) : transport.receive(t);
    wait_all(transport, {&t});
    EXPECT_FALSE(world.peer_status->is_lost(0));
  });
}

TEST(Tcp, WakesSleeperWhenFailureIsRecorded) {
  run_ranks(2, {}, [](World& world, Transport& transport) {
    if (world.rank == 0) return;
    std::vector<std::byte> data(8);
    Transfer t = transfer_of(0, data, 1);
    transport.receive(t);
    std::thread reporter([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      world.peer_status->abort(0, CommError(CommError::Kind::aborted, 0, "test abort"));
    });
    EXPECT_THROW(wait_all(transport, {&t}), CommError);
    reporter.join();
  });
}

TEST(Tcp, ErrorNamesMaximumMessageSize) {
  run_ranks(2, {}, [](World& world, Transport& transport) {
    Transfer t;
    t.peer = 1 - world.rank;
    t.bytes = kMaxMessageBytes + 1;
    EXPECT_THROW(transport.send(t), UsageError);
  });
}

}  // namespace
}  // namespace esp::net
