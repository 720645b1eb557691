#include "esp/net/store/hub.h"

#include <sys/socket.h>

#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "esp/net/address.h"
#include "esp/net/handshake.h"
#include "esp/net/store/hub_core.h"
#include "esp/net/store/hub_store.h"

namespace esp::net {
namespace {

const Secret kSecret(std::string(32, 's'));
Deadline soon() {
  return Deadline::after_ms(20'000);
}

HubOptions options(int size) {
  HubOptions made;
  made.size = size;
  made.job = "job";
  made.secret = kSecret;
  return made;
}

Socket authenticated(const Hub& hub, Role role, int rank) {
  return connect_to(hub.address(), hub.port(), kSecret, {role, rank, "job", 0, 0}, "", soon());
}

std::unique_ptr<HubStore> client(const Hub& hub, int rank) {
  return std::make_unique<HubStore>(authenticated(hub, Role::store, rank), HubStore::Options{std::chrono::seconds(20)},
                                    soon());
}

// Checks that the Hub still answers a well-behaved client.
void expect_served(HubStore& store) {
  for (int i = 0; i < 200; ++i) {
    store.set("key", std::to_string(i));
    ASSERT_EQ(store.get("key", soon()), std::to_string(i));
  }
}

TEST(Hub, PartialRequestsDoNotDelayOthers) {
  Hub hub(options(2));
  auto real = client(hub, 0);
  std::vector<Socket> slow;
  FrameWriter writer;
  std::string request = writer.encode(FrameKind::set, encode_key_value("slow", std::string(1000, 'x')));
  for (int i = 0; i < 100; ++i) {
    slow.push_back(authenticated(hub, Role::store, -1));
    size_t part = request.size() * static_cast<size_t>(i) / 100;
    send(slow.back().fd(), request.data(), part, MSG_NOSIGNAL);
  }
  expect_served(*real);
  EXPECT_EQ(real->try_get("slow"), std::nullopt) << "a partial request must change nothing";
}

TEST(Hub, UnauthenticatedCallersDoNotDelayOthers) {
  Hub hub(options(2));
  auto real = client(hub, 0);
  std::vector<Socket> incomplete;
  auto target = numeric_address(hub.address(), hub.port());
  for (int i = 0; i < 300; ++i) {
    incomplete.emplace_back(::socket(target.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(connect(incomplete.back().fd(), target.get(), target.length), 0);
    if (i % 3) send(incomplete.back().fd(), "ESPALIER garbage", static_cast<size_t>(i % 16), MSG_NOSIGNAL);
  }
  expect_served(*real);
  expect_served(*client(hub, 1));
}

TEST(Hub, ClientThatNeverReadsDoesNotDelayOthers) {
  Hub hub(options(2));
  auto real = client(hub, 0);
  real->set("large", std::string(kMaxValueBytes, 'x'));
  Socket unread = authenticated(hub, Role::store, -1);
  FrameWriter writer;
  size_t asked = 0;
  // Requests 64 KiB repeatedly without reading, until the Hub stops accepting requests.
  for (; asked < 5000; ++asked) {
    std::string request = writer.encode(FrameKind::try_get, encode_key("large"));
    if (send(unread.fd(), request.data(), request.size(), MSG_NOSIGNAL) < static_cast<ssize_t>(request.size())) break;
  }
  expect_served(*real);
}

TEST(Hub, ClosesOnlyConnectionThatSendsGarbage) {
  Hub hub(options(2));
  auto real = client(hub, 0);
  Socket bad = authenticated(hub, Role::store, -1);
  std::string garbage(1000, '\x7f');
  send(bad.fd(), garbage.data(), garbage.size(), MSG_NOSIGNAL);
  char byte;
  ssize_t got;
  do {
    got = recv(bad.fd(), &byte, 1, 0);
    if (got < 0 && errno == EAGAIN) std::this_thread::yield();
  } while (got > 0 || (got < 0 && errno == EAGAIN));
  expect_served(*real);
}

TEST(Hub, RejectsOtherJob) {
  Hub hub(options(2));
  try {
    connect_to(hub.address(), hub.port(), kSecret, {Role::store, 0, "another job", 0, 0}, "", soon());
    FAIL() << "the Hub accepted a caller of another job";
  } catch (const CommError& error) {
    EXPECT_EQ(error.kind(), CommError::Kind::refused);
  }
}

TEST(Hub, JoinReturnsWholeTableToAllRanks) {
  constexpr int kSize = 5;
  Hub hub(options(kSize));
  std::vector<std::unique_ptr<HubStore>> stores;
  for (int rank = 0; rank < kSize; ++rank) stores.push_back(client(hub, rank));
  EXPECT_EQ(stores[0]->hub_info().job, stores[1]->hub_info().job);
  std::vector<std::vector<Peer>> tables(kSize);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kSize; ++rank)
    threads.emplace_back([&, rank] {
      Peer peer{"host", "127.0.0.1", 1000 + rank, 1, 1};
      tables[static_cast<size_t>(rank)] = stores[static_cast<size_t>(rank)]->join({rank, kSize, peer}, soon());
    });
  for (auto& thread : threads) thread.join();
  for (const auto& table : tables) {
    ASSERT_EQ(table.size(), static_cast<size_t>(kSize));
    for (int rank = 0; rank < kSize; ++rank) EXPECT_EQ(table[static_cast<size_t>(rank)].port, 1000 + rank);
  }
}

std::string fault_of_join(HubStore& store, int rank, int size, Deadline deadline) {
  try {
    store.join({rank, size, {}}, deadline);
  } catch (const Error& error) {
    return error.what();
  }
  return "joined";
}

TEST(Hub, JoinErrorStatesReason) {
  Hub hub(options(4));
  auto one = client(hub, 1), two = client(hub, 2), two_again = client(hub, 2);
  EXPECT_EQ(fault_of_join(*one, 3, 4, soon()), "join request: got rank 3; expected rank 1, as in the handshake");
  EXPECT_EQ(fault_of_join(*two, 2, 4, Deadline::after_ms(50)), "1 of 4 ranks joined; missing: 0-1, 3");
  EXPECT_NE(fault_of_join(*two_again, 2, 4, soon()).find("already joined"), std::string::npos);
}

TEST(Hub, ReportsWorldSizeMismatchToAllRanks) {
  Hub hub(options(3));
  auto begun = Clock::now();
  std::vector<std::string> faults(4);
  {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < 4; ++rank)
      ranks.emplace_back([&, rank] {
        auto store = client(hub, rank);
        faults[static_cast<size_t>(rank)] = fault_of_join(*store, rank, rank < 2 ? 3 : 4, soon());
      });
  }
  for (const std::string& fault : faults)
    EXPECT_EQ(fault,
              "world size: the launcher says 3, ranks 0-1 say 3, ranks 2-3 say 4. Start every rank with the same "
              "WORLD_SIZE");
  EXPECT_LT(Clock::now() - begun, std::chrono::seconds(20)) << "the ranks failed only at the deadline";
  EXPECT_EQ(fault_of_join(*client(hub, 3), 3, 4, soon()), faults[0]) << "a late rank gets the same error";
}

TEST(Hub, RankFailureDuringRendezvousFailsAllRanks) {
  Hub hub(options(3));
  auto one = client(hub, 1), two = client(hub, 2);
  std::string fault;
  std::thread waiting([&] { fault = fault_of_join(*one, 1, 3, soon()); });
  EXPECT_NE(fault_of_join(*two, 2, 3, Deadline::after_ms(30)), "joined");
  two.reset();
  waiting.join();
  EXPECT_NE(fault.find("rank 2 closed its connection"), std::string::npos) << fault;
}

// Drives HubCore without sockets and collects its output per connection.
class HubCoreTest : public testing::Test {
 protected:
  void open(int id, Role role, int rank) { core_.opened(id, {role, rank, "job", 0, 0}); }
  void send(int id, FrameKind kind, std::string_view body) { core_.received(id, writers_[id].encode(kind, body)); }
  void join_all(int size) {
    for (int rank = 0; rank < size; ++rank) {
      open(rank, Role::store, rank);
      send(rank, FrameKind::join, encode_join_request({rank, size, {}}));
    }
    for (int rank = 0; rank < size; ++rank) open(100 + rank, Role::failure_detector, rank);
    out_.clear();
  }
  std::vector<Frame> frames(int id) { return std::exchange(out_[id], {}); }

  std::map<int, FrameWriter> writers_;
  std::map<int, FrameReader> readers_;
  std::map<int, std::vector<Frame>> out_;
  std::vector<int> dropped_;
  HubCore core_{3,
                {"job-1", -1},
                Log(LogLevel::off, -1),
                [this](int id, const std::string& bytes) {
                  auto& reader = readers_.try_emplace(id, kMaxAnswerBytes).first->second;
                  reader.append(bytes);
                  while (auto frame = reader.next()) out_[id].push_back(*frame);
                },
                [this](int id) { dropped_.push_back(id); }};
};

TEST_F(HubCoreTest, ReportsRankFailureOnceAndRejectsRejoin) {
  join_all(3);
  core_.closed(101);
  core_.closed(1);
  for (int detector : {100, 102}) {
    auto received = frames(detector);
    ASSERT_EQ(received.size(), 1u);
    EXPECT_EQ(received[0].kind, FrameKind::lost);
    EXPECT_EQ(decode_rank_failure(received[0].body).rank, 1);
    EXPECT_EQ(decode_rank_failure(received[0].body).how, "closed its connection");
  }
  open(7, Role::store, 1);
  open(8, Role::failure_detector, 1);
  EXPECT_EQ(dropped_, (std::vector<int>{7, 8}));
}

TEST_F(HubCoreTest, DeclaresUnresponsiveHostLost) {
  for (int rank = 0; rank < 3; ++rank) {
    open(rank, Role::store, rank);
    Peer peer;
    peer.host = rank == 0 ? "near#1" : "far#2";
    send(rank, FrameKind::join, encode_join_request({rank, 3, peer}));
    open(100 + rank, Role::failure_detector, rank);
  }
  out_.clear();
  const auto silent_for = [&](std::chrono::seconds silence) {
    core_.check_links([&](int id) { return id == 101 ? Duration(silence) : Duration::zero(); });
  };
  silent_for(std::chrono::seconds(29));
  EXPECT_TRUE(dropped_.empty()) << "a short interruption must be tolerated";
  silent_for(std::chrono::seconds(31));
  EXPECT_EQ(dropped_, (std::vector<int>{101}));
  auto received = frames(100);
  ASSERT_EQ(received.size(), 1u);
  EXPECT_EQ(decode_rank_failure(received[0].body).rank, 1);
  EXPECT_EQ(decode_rank_failure(received[0].body).how, "is lost: host far: no data for 31 s");
}

TEST_F(HubCoreTest, ReportsRankThatSentByeAsLeft) {
  join_all(3);
  send(101, FrameKind::bye, {});
  core_.closed(101);
  core_.closed(1);
  auto received = frames(100);
  ASSERT_EQ(received.size(), 1u);
  EXPECT_EQ(received[0].kind, FrameKind::left);
  EXPECT_EQ(frames(101).at(0).kind, FrameKind::bye_ack);
  EXPECT_FALSE(core_.failed());
  EXPECT_FALSE(core_.finished());
  send(100, FrameKind::bye, {});
  send(102, FrameKind::bye, {});
  EXPECT_TRUE(core_.finished());
}

TEST_F(HubCoreTest, LateFailureDetectorGetsMissedEvents) {
  for (int rank = 0; rank < 3; ++rank) {
    open(rank, Role::store, rank);
    send(rank, FrameKind::join, encode_join_request({rank, 3, {}}));
  }
  core_.closed(2);
  open(100, Role::failure_detector, 0);
  auto received = frames(100);
  ASSERT_EQ(received.size(), 1u);
  EXPECT_EQ(decode_rank_failure(received[0].body).rank, 2);
}

// One rank has finished the rendezvous and aborts a group, while the failure detector of another rank has not connected
// yet. The late detector must receive the abort once.
TEST_F(HubCoreTest, LateFailureDetectorGetsAbortOnce) {
  for (int rank = 0; rank < 3; ++rank) {
    open(rank, Role::store, rank);
    send(rank, FrameKind::join, encode_join_request({rank, 3, {}}));
  }
  open(101, Role::failure_detector, 1);
  for (uint64_t group = 0; group < 2 * kMaxUndeliveredAborts; ++group)
    send(101, FrameKind::abort,
         encode_abort({group, {0, 1, 2}, CommError(CommError::Kind::mismatch, 2, "sums, gathers")}));
  open(102, Role::failure_detector, 2);
  const auto received = frames(102);
  ASSERT_EQ(received.size(), kMaxUndeliveredAborts) << "the Hub must store at most this many aborts";
  for (uint64_t group = 0; group < received.size(); ++group) {
    EXPECT_EQ(received[group].kind, FrameKind::aborted);
    EXPECT_EQ(decode_abort(received[group].body).group, group);
    EXPECT_STREQ(decode_abort(received[group].body).cause.what(), "sums, gathers");
  }
  EXPECT_TRUE(frames(101).empty()) << "the rank that aborted must not receive the abort";
  send(101, FrameKind::abort, encode_abort({9, {2}, CommError(CommError::Kind::mismatch, 2, "again")}));
  EXPECT_EQ(frames(102).size(), 1u);
}

TEST_F(HubCoreTest, IgnoresSecondConnectionOfSameRank) {
  join_all(3);
  open(50, Role::store, 1);
  send(50, FrameKind::join, encode_join_request({1, 3, {}}));
  EXPECT_EQ(frames(50).back().kind, FrameKind::refused);
  core_.closed(50);
  EXPECT_TRUE(frames(100).empty());
  EXPECT_FALSE(core_.failed());
}

TEST_F(HubCoreTest, ForwardsPositionQueriesAndReplies) {
  join_all(3);
  core_.closed(102);
  frames(100);
  send(100, FrameKind::query_positions, encode_position_query({77, 9, {0, 1, 2}}));
  auto gone = frames(100);
  ASSERT_EQ(gone.size(), 1u) << "the Hub must reply for the lost rank";
  EXPECT_EQ(decode_position_report(gone[0].body).rank, 2);
  EXPECT_FALSE(decode_position_report(gone[0].body).position.answered);
  auto question = frames(101);
  ASSERT_EQ(question.back().kind, FrameKind::position_query);
  PositionReport report = decode_position_report(question.back().body);
  EXPECT_EQ(report.group, 9u);
  report.position = {true, {5, 6, 7, 0, 0}, true};
  send(101, FrameKind::position_reply, encode_position_report(report));
  auto answer = frames(100);
  ASSERT_EQ(answer.size(), 1u);
  EXPECT_EQ(decode_position_report(answer[0].body).rank, 1);
  EXPECT_EQ(decode_position_report(answer[0].body).position.entered.sequence, 5u);
}

TEST_F(HubCoreTest, DropsWaitingGetOfClosedConnection) {
  open(1, Role::store, 0);
  open(2, Role::store, 1);
  send(1, FrameKind::get, encode_key("k"));
  core_.closed(1);
  out_.clear();
  send(2, FrameKind::set, encode_key_value("k", "v"));
  EXPECT_TRUE(out_[1].empty());
  EXPECT_EQ(frames(2).at(0).kind, FrameKind::done);
}

}  // namespace
}  // namespace esp::net
