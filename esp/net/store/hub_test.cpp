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

// Whether a real client still gets its answers.
void expect_served(HubStore& store) {
  for (int i = 0; i < 200; ++i) {
    store.set("key", std::to_string(i));
    ASSERT_EQ(store.get("key", soon()), std::to_string(i));
  }
}

TEST(Hub, HalfSentRequestsDelayNobody) {
  Hub hub(options(2));
  auto real = client(hub, 0);
  std::vector<Socket> slow;
  FrameWriter writer;
  std::string request = writer.encode(Kind::set, encode_key_value("slow", std::string(1000, 'x')));
  for (int i = 0; i < 100; ++i) {
    slow.push_back(authenticated(hub, Role::store, -1));
    size_t part = request.size() * static_cast<size_t>(i) / 100;
    send(slow.back().fd(), request.data(), part, MSG_NOSIGNAL);
  }
  expect_served(*real);
  EXPECT_EQ(real->try_get("slow"), std::nullopt) << "half a request changes nothing";
}

TEST(Hub, UnauthenticatedCallersDelayNobody) {
  Hub hub(options(2));
  auto real = client(hub, 0);
  std::vector<Socket> loris;
  auto target = numeric_address(hub.address(), hub.port());
  for (int i = 0; i < 300; ++i) {
    loris.emplace_back(::socket(target.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(connect(loris.back().fd(), target.get(), target.length), 0);
    if (i % 3) send(loris.back().fd(), "ESPALIER garbage", static_cast<size_t>(i % 16), MSG_NOSIGNAL);
  }
  expect_served(*real);
  expect_served(*client(hub, 1));
}

TEST(Hub, AClientThatNeverReadsDelaysNobody) {
  Hub hub(options(2));
  auto real = client(hub, 0);
  real->set("large", std::string(kMaxValueBytes, 'x'));
  Socket deaf = authenticated(hub, Role::store, -1);
  FrameWriter writer;
  size_t asked = 0;
  // Asks for 64 KiB again and again without reading, until the Hub no longer takes its requests.
  for (; asked < 5000; ++asked) {
    std::string request = writer.encode(Kind::try_get, encode_key("large"));
    if (send(deaf.fd(), request.data(), request.size(), MSG_NOSIGNAL) < static_cast<ssize_t>(request.size())) break;
  }
  expect_served(*real);
}

TEST(Hub, GarbageAfterTheHandshakeClosesThatConnectionOnly) {
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

TEST(Hub, RefusesAnotherJob) {
  Hub hub(options(2));
  try {
    connect_to(hub.address(), hub.port(), kSecret, {Role::store, 0, "another job", 0, 0}, "", soon());
    FAIL() << "it is another job's";
  } catch (const CommError& error) {
    EXPECT_EQ(error.kind(), CommError::Kind::refused);
  }
}

TEST(Hub, JoinGivesEveryoneTheWholeTable) {
  constexpr int kSize = 5;
  Hub hub(options(kSize));
  std::vector<std::unique_ptr<HubStore>> stores;
  for (int rank = 0; rank < kSize; ++rank) stores.push_back(client(hub, rank));
  EXPECT_EQ(stores[0]->welcome().job, stores[1]->welcome().job);
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

TEST(Hub, JoinSaysWhatIsWrong) {
  Hub hub(options(4));
  auto one = client(hub, 1), two = client(hub, 2), two_again = client(hub, 2);
  EXPECT_EQ(fault_of_join(*one, 3, 4, soon()), "rank 1 joined as rank 3");
  EXPECT_EQ(fault_of_join(*two, 2, 4, Deadline::after_ms(50)), "1 of 4 ranks came; missing: 0-1, 3");
  EXPECT_NE(fault_of_join(*two_again, 2, 4, soon()).find("already joined"), std::string::npos);
}

TEST(Hub, TellsAllRanksWhichWorldSizesDiffer) {
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
  EXPECT_LT(Clock::now() - begun, std::chrono::seconds(20)) << "not by the deadline";
  EXPECT_EQ(fault_of_join(*client(hub, 3), 3, 4, soon()), faults[0]) << "one that comes late hears it too";
}

TEST(Hub, ARankThatDiesDuringTheRendezvousEndsItForAll) {
  Hub hub(options(3));
  auto one = client(hub, 1), two = client(hub, 2);
  std::string fault;
  std::thread waiting([&] { fault = fault_of_join(*one, 1, 3, soon()); });
  EXPECT_NE(fault_of_join(*two, 2, 3, Deadline::after_ms(30)), "joined");
  two.reset();
  waiting.join();
  EXPECT_NE(fault.find("rank 2 closed its connection"), std::string::npos) << fault;
}

// HubCore without sockets: what goes out is kept by connection.
class Core : public testing::Test {
 protected:
  void open(int id, Role role, int rank) { core_.opened(id, {role, rank, "job", 0, 0}); }
  void send(int id, Kind kind, std::string_view body) { core_.received(id, writers_[id].encode(kind, body)); }
  void join_all(int size) {
    for (int rank = 0; rank < size; ++rank) {
      open(rank, Role::store, rank);
      send(rank, Kind::join, encode_join({rank, size, {}}));
    }
    for (int rank = 0; rank < size; ++rank) open(100 + rank, Role::watch, rank);
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

TEST_F(Core, TellsOfALossOnceAndRefusesItsReturn) {
  join_all(3);
  core_.closed(101);
  core_.closed(1);
  for (int watch : {100, 102}) {
    auto heard = frames(watch);
    ASSERT_EQ(heard.size(), 1u);
    EXPECT_EQ(heard[0].kind, Kind::lost);
    EXPECT_EQ(decode_loss(heard[0].body).rank, 1);
    EXPECT_EQ(decode_loss(heard[0].body).how, "closed its connection");
  }
  open(7, Role::store, 1);
  open(8, Role::watch, 1);
  EXPECT_EQ(dropped_, (std::vector<int>{7, 8}));
}

TEST_F(Core, AHostThatDoesNotAnswerIsNamedAndLost) {
  for (int rank = 0; rank < 3; ++rank) {
    open(rank, Role::store, rank);
    Peer peer;
    peer.host = rank == 0 ? "near#1" : "far#2";
    send(rank, Kind::join, encode_join({rank, 3, peer}));
    open(100 + rank, Role::watch, rank);
  }
  out_.clear();
  const auto silent_for = [&](std::chrono::seconds silence) {
    core_.check_links([&](int id) { return id == 101 ? Duration(silence) : Duration::zero(); });
  };
  silent_for(std::chrono::seconds(29));
  EXPECT_TRUE(dropped_.empty()) << "interruptions are tolerated";
  silent_for(std::chrono::seconds(31));
  EXPECT_EQ(dropped_, (std::vector<int>{101}));
  auto heard = frames(100);
  ASSERT_EQ(heard.size(), 1u);
  EXPECT_EQ(decode_loss(heard[0].body).rank, 1);
  EXPECT_EQ(decode_loss(heard[0].body).how, "is lost: host far: no data for 31 s");
}

TEST_F(Core, AByeMeansLeftNotLost) {
  join_all(3);
  send(101, Kind::bye, {});
  core_.closed(101);
  core_.closed(1);
  auto heard = frames(100);
  ASSERT_EQ(heard.size(), 1u);
  EXPECT_EQ(heard[0].kind, Kind::left);
  EXPECT_EQ(frames(101).at(0).kind, Kind::bye_heard);
  EXPECT_FALSE(core_.faulty());
  EXPECT_FALSE(core_.finished());
  send(100, Kind::bye, {});
  send(102, Kind::bye, {});
  EXPECT_TRUE(core_.finished());
}

TEST_F(Core, ALateWatchHearsWhatItMissed) {
  for (int rank = 0; rank < 3; ++rank) {
    open(rank, Role::store, rank);
    send(rank, Kind::join, encode_join({rank, 3, {}}));
  }
  core_.closed(2);
  open(100, Role::watch, 0);
  auto heard = frames(100);
  ASSERT_EQ(heard.size(), 1u);
  EXPECT_EQ(decode_loss(heard[0].body).rank, 2);
}

// One rank is through and calls off a group while another's watch is still on its way.
TEST_F(Core, ALateWatchHearsOfAnAbortOnce) {
  for (int rank = 0; rank < 3; ++rank) {
    open(rank, Role::store, rank);
    send(rank, Kind::join, encode_join({rank, 3, {}}));
  }
  open(101, Role::watch, 1);
  for (uint64_t group = 0; group < 2 * kMaxUnheard; ++group)
    send(101, Kind::abort, encode_abort({group, {0, 1, 2}, CommError(CommError::Kind::mismatch, 2, "sums, gathers")}));
  open(102, Role::watch, 2);
  const auto heard = frames(102);
  ASSERT_EQ(heard.size(), kMaxUnheard) << "so many are kept";
  for (uint64_t group = 0; group < heard.size(); ++group) {
    EXPECT_EQ(heard[group].kind, Kind::aborted);
    EXPECT_EQ(decode_abort(heard[group].body).group, group);
    EXPECT_STREQ(decode_abort(heard[group].body).cause.what(), "sums, gathers");
  }
  EXPECT_TRUE(frames(101).empty()) << "who called it off knows";
  send(101, Kind::abort, encode_abort({9, {2}, CommError(CommError::Kind::mismatch, 2, "again")}));
  EXPECT_EQ(frames(102).size(), 1u);
}

TEST_F(Core, AStrangerOfTheSameRankChangesNothing) {
  join_all(3);
  open(50, Role::store, 1);
  send(50, Kind::join, encode_join({1, 3, {}}));
  EXPECT_EQ(frames(50).back().kind, Kind::refused);
  core_.closed(50);
  EXPECT_TRUE(frames(100).empty());
  EXPECT_FALSE(core_.faulty());
}

TEST_F(Core, QuestionsReachTheAskedAndAnswersTheAsker) {
  join_all(3);
  core_.closed(102);
  frames(100);
  send(100, Kind::ask, encode_ask({77, 9, {0, 1, 2}}));
  auto gone = frames(100);
  ASSERT_EQ(gone.size(), 1u) << "for the rank that is lost the hub answers";
  EXPECT_EQ(decode_report(gone[0].body).rank, 2);
  EXPECT_FALSE(decode_report(gone[0].body).standing.answered);
  auto question = frames(101);
  ASSERT_EQ(question.back().kind, Kind::question);
  Report report = decode_report(question.back().body);
  EXPECT_EQ(report.group, 9u);
  report.standing = {true, {5, 6, 7, 0, 0}, true};
  send(101, Kind::standing, encode_report(report));
  auto answer = frames(100);
  ASSERT_EQ(answer.size(), 1u);
  EXPECT_EQ(decode_report(answer[0].body).rank, 1);
  EXPECT_EQ(decode_report(answer[0].body).standing.entered.sequence, 5u);
}

TEST_F(Core, AParkedGetOfAClosedConnectionIsForgotten) {
  open(1, Role::store, 0);
  open(2, Role::store, 1);
  send(1, Kind::get, encode_key("k"));
  core_.closed(1);
  out_.clear();
  send(2, Kind::set, encode_key_value("k", "v"));
  EXPECT_TRUE(out_[1].empty());
  EXPECT_EQ(frames(2).at(0).kind, Kind::done);
}

}  // namespace
}  // namespace esp::net
