#include "esp/net/rendezvous.h"

#include <dirent.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "esp/net/address.h"
#include "esp/net/forked.h"
#include "esp/net/listener.h"
#include "esp/net/store/hub.h"
#include "esp/net/watch.h"

namespace esp::net {
namespace {

Deadline soon() {
  return Deadline::after_ms(30'000);
}

class Directory {
 public:
  Directory() {
    std::string pattern = testing::TempDir() + "esp-rendezvous-XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~Directory() { std::filesystem::remove_all(path_); }
  std::string endpoint() const { return "file://" + path_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Rank 0 hosts the hub and leaves its address in a directory.
RendezvousOptions options(const Directory& directory, int rank, int size) {
  RendezvousOptions made;
  made.rank = rank;
  made.size = made.local_size = size;
  made.endpoint = directory.endpoint();
  made.host_hub = rank == 0;
  made.secret = Secret(std::string(32, 's'));
  made.job = "test";
  made.net.timeout = std::chrono::seconds(20);
  made.log = Log(LogLevel::warn, rank);
  return made;
}

using Body = std::function<void(World& world, Forked& parent)>;

// One process per rank; each says "ready" once it has its World and the parent has all of them, then runs the body.
std::vector<Forked> fork_ranks(const Directory& directory, int size, const Body& body) {
  std::vector<Forked> ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.emplace_back([&, rank](Forked& parent) {
      auto world = rendezvous(options(directory, rank, size), soon());
      parent.say("ready");
      parent.hear();
      body(*world, parent);
    });
  for (Forked& rank : ranks) EXPECT_EQ(rank.hear(), "ready");
  for (Forked& rank : ranks) rank.say("go");
  return ranks;
}

// What a wait of this group would throw, once something has gone wrong.
std::string first_fault(const World& world, uint64_t group = 1) {
  auto deadline = soon();
  while (!deadline.passed()) {
    try {
      world.fate->check(group, world.everyone().members);
    } catch (const CommError& error) {
      return fmt::format("{} {}", error.peer(), error.what());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return "nothing went wrong";
}

int count_entries(const char* directory) {
  int count = 0;
  DIR* list = opendir(directory);
  while (readdir(list)) ++count;
  closedir(list);
  return count;
}

// Local addresses of this process's listening sockets, as /proc/net/tcp writes them.
std::vector<std::string> listening_addresses() {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    std::string target = std::filesystem::read_symlink(entry, error).string();
    if (target.rfind("socket:[", 0) != 0) continue;
    std::string inode = target.substr(8, target.size() - 9);
    for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
      std::ifstream lines(table);
      for (std::string line; std::getline(lines, line);) {
        std::istringstream fields(line);
        std::string number, local, remote, state, word;
        fields >> number >> local >> remote >> state;
        for (int i = 0; i < 5; ++i) fields >> word;
        fields >> word;
        if (word == inode && state == "0A") found.push_back(local.substr(0, local.find(':')));
      }
    }
  }
  return found;
}

TEST(Rendezvous, EveryRankSeesEveryPeer) {
  Directory directory;
  auto ranks = fork_ranks(directory, 4, [](World& world, Forked& parent) {
    std::string seen;
    for (int peer = 0; peer < world.size; ++peer)
      seen += fmt::format("{}{}", world.same_host(world.rank, peer), world.peers[static_cast<size_t>(peer)].pid > 0);
    world.store->set(fmt::format("hello {}", world.rank), seen);
    std::string last = world.store->get("hello 3", soon());
    parent.say(seen == last ? world.job : "differs");
  });
  std::string job = ranks[0].hear();
  EXPECT_EQ(job.rfind("test-", 0), 0u) << job;
  for (size_t rank = 1; rank < 4; ++rank) EXPECT_EQ(ranks[rank].hear(), job);
  for (Forked& rank : ranks) EXPECT_EQ(rank.wait(), 0);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory.path()), {}), 1) << "the lock file alone stays";
}

TEST(Rendezvous, OnOneHostNothingListensBeyondLoopback) {
  Directory directory;
  auto ranks = fork_ranks(directory, 2, [](World& world, Forked& parent) {
    std::string text;
    for (const auto& address : listening_addresses()) text += address + " ";
    parent.say(text);
    world.store->add("done", 1);
  });
  EXPECT_EQ(ranks[0].hear(), "0100007F 0100007F ") << "hub and listener";
  EXPECT_EQ(ranks[1].hear(), "0100007F ");
}

TEST(Rendezvous, LeavesNoThreadAndNoDescriptor) {
  Directory directory;
  std::vector<Forked> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank](Forked& parent) {
      auto count = [] {
        return fmt::format("{} threads {} descriptors", count_entries("/proc/self/task"),
                           count_entries("/proc/self/fd"));
      };
      auto round = [&] { rendezvous(options(directory, rank, 2), soon())->store->add("round", 1); };
      round();  // whatever libraries open once, they have open now
      std::string before = count();
      for (int i = 0; i < 5; ++i) round();
      parent.say(before == count() ? "same" : before + ", then " + count());
    });
  for (Forked& rank : ranks) EXPECT_EQ(rank.hear(), "same");
}

TEST(Rendezvous, WithALauncherHubOverTcp) {
  std::vector<Forked> ranks;
  for (int rank = 0; rank < 3; ++rank)
    ranks.emplace_back([&, rank](Forked& parent) {
      Directory unused;
      auto mine = options(unused, rank, 3);
      mine.endpoint = parent.hear();
      mine.host_hub = false;
      mine.local_size = 0;
      auto world = rendezvous(mine, soon());
      parent.say(world->peers[static_cast<size_t>(2 - rank)].address);
      parent.hear();
      parent.say(first_fault(*world));
    });
  HubOptions hub_options;
  hub_options.size = 3;
  hub_options.job = "test";
  hub_options.secret = Secret(std::string(32, 's'));
  Hub hub(hub_options);
  for (Forked& rank : ranks) rank.say(fmt::format("tcp://localhost:{}", hub.port()));
  for (Forked& rank : ranks) EXPECT_EQ(rank.hear(), "127.0.0.1");
  ranks[1].kill(SIGKILL);
  for (int rank : {0, 2}) ranks[static_cast<size_t>(rank)].say("go");
  for (int rank : {0, 2}) EXPECT_EQ(ranks[static_cast<size_t>(rank)].hear().rfind("1 rank 1 ", 0), 0u);
}

TEST(Rendezvous, RefusesAnotherJobAndAnotherSecret) {
  std::vector<Forked> strangers;
  for (int kind = 0; kind < 2; ++kind)
    strangers.emplace_back([&, kind](Forked& parent) {
      Directory unused;
      auto mine = options(unused, 1, 2);
      mine.endpoint = parent.hear();
      (kind == 0 ? mine.job : mine.endpoint) += kind == 0 ? " of another" : "";
      if (kind == 1) mine.secret = Secret(std::string(32, 'x'));
      rendezvous(mine, soon());
    });
  HubOptions hub_options;
  hub_options.size = 2;
  hub_options.job = "test";
  hub_options.secret = Secret(std::string(32, 's'));
  Hub hub(hub_options);
  for (Forked& stranger : strangers) stranger.say(fmt::format("tcp://127.0.0.1:{}", hub.port()));
  for (Forked& stranger : strangers) {
    std::string text = stranger.hear();
    EXPECT_EQ(text.rfind("threw the handshake was refused", 0), 0u) << text;
  }
}

TEST(Rendezvous, ManyJobsAtOnceNeverMix) {
  constexpr int kJobs = 6;
  Directory directory;  // one board for all of them
  std::vector<Forked> ranks;
  for (int job = 0; job < kJobs; ++job)
    for (int rank = 0; rank < 2; ++rank)
      ranks.emplace_back([&, job, rank](Forked& parent) {
        auto mine = options(directory, rank, 2);
        mine.job = fmt::format("job {}", job);
        auto world = rendezvous(mine, soon());
        world->store->set(fmt::format("from {}", rank), mine.job);
        bool right = world->store->get(fmt::format("from {}", 1 - rank), soon()) == mine.job;
        parent.say(right ? world->job : "mixed");
      });
  for (size_t job = 0; job < kJobs; ++job) {
    std::string id = ranks[2 * job].hear();
    EXPECT_EQ(id.rfind(fmt::format("job {}-", job), 0), 0u) << id;
    EXPECT_EQ(ranks[2 * job + 1].hear(), id);
  }
}

// A port with a listener of our own making, which says nothing to whoever connects, or closes at once.
class Stranger {
 public:
  explicit Stranger(bool closes) : listening_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    auto any = numeric_address("0.0.0.0", 0);
    EXPECT_EQ(bind(listening_.fd(), any.get(), any.length), 0);
    EXPECT_EQ(listen(listening_.fd(), 64), 0);
    thread_ = std::jthread([this, closes](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        pollfd item{listening_.fd(), POLLIN, 0};
        if (poll(&item, 1, 20) <= 0) continue;
        Socket caller(accept4(listening_.fd(), nullptr, nullptr, SOCK_CLOEXEC));
        if (!closes) kept_.push_back(std::move(caller));
      }
    });
  }
  int port() const { return local_address(listening_.fd()).port(); }

 private:
  Socket listening_;
  std::vector<Socket> kept_;
  std::jthread thread_;
};

RendezvousOptions beside(int port, int rank, const std::string& job) {
  RendezvousOptions made;
  made.rank = rank;
  made.size = 2;
  made.endpoint = fmt::format("tcp://127.0.0.1:{}", port);
  made.port = RendezvousOptions::Port::shared;
  made.host_hub = rank == 0;
  made.secret = Secret(std::string(32, 's'));
  made.job = fmt::format("port-{}/{}", port, job);  // as launch/world.cpp names it: another port, another job
  made.log = Log(LogLevel::warn, rank);
  return made;
}

// Two ranks that meet at the port that each is told. Fork before a thread starts: a lock that a thread of the parent
// holds during fork() stays locked in the child.
std::vector<Forked> fork_two_ranks(const std::string& job) {
  std::vector<Forked> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([=](Forked& parent) {
      const int port = std::stoi(parent.hear());
      auto world = rendezvous(beside(port, rank, job), soon());
      parent.say(world->job);
      parent.hear();
    });
  return ranks;
}

void meet_at(std::vector<Forked>& ranks, int port) {
  for (Forked& rank : ranks) rank.say(std::to_string(port));
}

TEST(Rendezvous, WorksWhenAnotherProgramHasThePort) {
  for (bool closes : {true, false}) {
    auto ranks = fork_two_ranks("shared");
    Stranger stranger(closes);
    meet_at(ranks, stranger.port());
    std::string job = ranks[0].hear();
    EXPECT_EQ(job.rfind(fmt::format("port-{}/shared-", stranger.port()), 0), 0u) << job;
    EXPECT_EQ(ranks[1].hear(), job);
    for (Forked& rank : ranks) rank.say("end");
    for (Forked& rank : ranks) EXPECT_EQ(rank.wait(), 0);
  }
}

TEST(Rendezvous, TwoJobsWithOnePortStayApart) {
  const int port = [] { return Stranger(true).port(); }();  // free again
  std::vector<std::vector<Forked>> jobs;
  for (const char* job : {"one", "other"}) jobs.push_back(fork_two_ranks(job));
  for (auto& ranks : jobs) meet_at(ranks, port);
  std::string one = jobs[0][0].hear(), other = jobs[1][0].hear();
  EXPECT_EQ(one.rfind(fmt::format("port-{}/one-", port), 0), 0u) << one;
  EXPECT_EQ(other.rfind(fmt::format("port-{}/other-", port), 0), 0u) << other;
  EXPECT_EQ(jobs[0][1].hear(), one);
  EXPECT_EQ(jobs[1][1].hear(), other);
  for (auto& ranks : jobs)
    for (Forked& rank : ranks) rank.say("end");
}

TEST(Rendezvous, ASecondRunOfOneNameIsToldToTakeAnotherPort) {
  const int port = [] { return Stranger(true).port(); }();
  auto ranks = fork_two_ranks("same");
  meet_at(ranks, port);
  std::string job = ranks[0].hear();
  EXPECT_EQ(ranks[1].hear(), job);
  Forked second([&](Forked&) { rendezvous(beside(port, 0, "same"), soon()); });
  EXPECT_EQ(second.hear(), fmt::format("threw 127.0.0.1 port {}: another run of yours meets there. Give each run a "
                                       "MASTER_PORT of its own",
                                       port));
  for (Forked& rank : ranks) rank.say("end");
}

TEST(Rendezvous, ItsDeadlineIsTheOneGiven) {
  const int port = [] { return Stranger(true).port(); }();
  auto begun = Clock::now();
  Forked alone([&](Forked&) { rendezvous(beside(port, 1, "late"), Deadline::after_ms(1000)); });
  std::string text = alone.hear();
  EXPECT_EQ(text.rfind(fmt::format("threw no connection to rank 0 at tcp://127.0.0.1:{} within 1", port), 0), 0u)
      << text;
  EXPECT_LT(Clock::now() - begun, std::chrono::seconds(20));
  Forked late([&](Forked& parent) {
    parent.hear();
    parent.say(rendezvous(beside(port, 0, "late"), soon())->job);
  });
  Forked early([&](Forked& parent) { parent.say(rendezvous(beside(port, 1, "late"), soon())->job); });
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));  // longer than the first one waited
  late.say("come");
  EXPECT_EQ(early.hear(), late.hear());
}

TEST(Rendezvous, SixtyFourLocalRanksCompleteIt) {
  Directory directory;
  auto start = Clock::now();
  auto ranks = fork_ranks(directory, 64, [](World& world, Forked& parent) {
    world.store->add("arrived", 1);
    parent.say(std::to_string(world.peers.size()));
  });
  auto ready_ms = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start).count();
  for (Forked& rank : ranks) EXPECT_EQ(rank.hear(), "64");
  for (Forked& rank : ranks) EXPECT_EQ(rank.wait(), 0);
  RecordProperty("ready_ms", std::to_string(ready_ms));
  std::printf("64 ranks were ready after %lld ms\n", static_cast<long long>(ready_ms));
}

TEST(Rendezvous, SaysWhoIsMissing) {
  Directory directory;
  Forked rank([&](Forked&) { rendezvous(options(directory, 0, 3), Deadline::after_ms(3000)); });
  EXPECT_EQ(
      rank.hear(),
      "threw 1 of 3 ranks came; missing: 1-2, within 3 s (start_timeout_s). Start every rank and give all of them "
      "one meeting place");
}

TEST(Watch, AKilledRankIsNamedByAllSurvivors) {
  Directory directory;
  auto ranks = fork_ranks(directory, 4, [](World& world, Forked& parent) {
    parent.say(first_fault(world));
    parent.hear();  // who goes before the others have looked would be news too
  });
  ranks[2].kill(SIGKILL);
  for (int rank : {0, 1, 3}) {
    std::string text = ranks[static_cast<size_t>(rank)].hear();
    EXPECT_EQ(text.rfind("2 rank 2 ", 0), 0u) << text;
  }
}

TEST(Watch, AKilledHubDoomsEveryGroup) {
  Directory directory;
  auto ranks = fork_ranks(directory, 3, [](World& world, Forked& parent) {
    parent.say("here");
    std::string named = first_fault(world);
    try {
      world.fate->check(5, {1, 2});
      parent.say("a group without rank 0 went on");
    } catch (const CommError& error) {
      parent.say(fmt::format("{} | {}", named, error.what()));
    }
    parent.hear();
  });
  for (Forked& rank : ranks) ASSERT_EQ(rank.hear(), "here");
  ranks[0].kill(SIGKILL);
  for (int rank : {1, 2}) {
    std::string text = ranks[static_cast<size_t>(rank)].hear();
    EXPECT_EQ(text.rfind("0 rank 0 ", 0), 0u) << text;
    EXPECT_NE(text.find("rank 0 closed its connection"), std::string::npos) << text;
  }
}

TEST(Watch, AnAbortReachesEveryMemberWithItsCause) {
  Directory directory;
  auto ranks = fork_ranks(directory, 3, [](World& world, Forked& parent) {
    if (world.rank == 1)
      world.watch->abort(1, {0, 1, 2}, CommError(CommError::Kind::mismatch, 2, "rank 1 sums, rank 2 gathers"));
    parent.say(first_fault(world, 1));
    parent.hear();
  });
  for (Forked& rank : ranks) EXPECT_EQ(rank.hear(), "2 rank 1 sums, rank 2 gathers");
}

TEST(Watch, ARankThatLeavesIsNotLostButMissed) {
  Directory directory;
  auto ranks = fork_ranks(directory, 3, [](World& world, Forked& parent) {
    if (world.rank == 2) return;
    for (auto deadline = soon(); !world.fate->left(2) && !deadline.passed();)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    // Longer than it takes to notice that the process has ended.
    parent.hear();
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    try {
      world.fate->check(1, {0, 1, 2});
      world.fate->check_present(1, {0, 1});
      world.fate->check_present(1, {0, 1, 2});
      parent.say("no error");
    } catch (const CommError& error) {
      parent.say(fmt::format("{} {}", world.fate->lost(2), error.what()));
    }
    parent.hear();  // who goes before the other has looked is missed too
  });
  EXPECT_EQ(ranks[2].wait(), 0);
  for (int rank : {0, 1}) ranks[static_cast<size_t>(rank)].say("it has ended");
  for (int rank : {0, 1}) EXPECT_EQ(ranks[static_cast<size_t>(rank)].hear(), "false rank 2 has left the job");
}

TEST(Watch, AskTellsWhereEveryoneStandsAndWhoIsStopped) {
  Directory directory;
  auto ranks = fork_ranks(directory, 4, [](World& world, Forked& parent) {
    LiveStanding standing;
    standing.enter({static_cast<uint64_t>(10 + world.rank), 7, 100, 0, 0});
    if (world.rank == 1) standing.leave();
    world.watch->enroll(world.everyone().id, &standing);
    parent.say("enrolled");
    parent.hear();  // the main thread is stuck here; the watch answers
    if (world.rank == 0) {
      std::vector<Standing> standings;
      auto late = [&](int rank) { return !standings[static_cast<size_t>(rank)].answered; };
      for (auto deadline = soon(); standings.empty() || ((late(1) || late(2)) && !deadline.passed());)
        standings = world.watch->ask(world.everyone(), Deadline::after_ms(1000));
      std::string text;
      for (const Standing& each : standings)
        text += each.answered ? fmt::format("{}{} ", each.entered.sequence, each.inside ? "in" : "out") : "silent ";
      parent.say(text);
      parent.hear();
    }
    world.watch->withdraw(world.everyone().id);
  });
  for (Forked& rank : ranks) EXPECT_EQ(rank.hear(), "enrolled");
  ranks[3].kill(SIGSTOP);
  int status = 0;
  waitpid(ranks[3].pid(), &status, WUNTRACED);
  ranks[0].say("ask");
  EXPECT_EQ(ranks[0].hear(), "10in 11out 12in silent ");
  ranks[3].kill(SIGCONT);
}

TEST(Watch, AskWaitsForNobodyWhoDies) {
  Directory directory;
  auto ranks = fork_ranks(directory, 3, [](World& world, Forked& parent) {
    if (world.rank == 0) {
      parent.hear();
      parent.say("asking");
      world.watch->ask(world.everyone(), Deadline::after_ms(120'000));
      parent.say("answered");
    }
    parent.hear();
  });
  ranks[2].kill(SIGSTOP);
  waitpid(ranks[2].pid(), nullptr, WUNTRACED);
  ranks[0].say("ask");
  EXPECT_EQ(ranks[0].hear(), "asking");
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // were it dead before it is asked, this would be easy
  ranks[2].kill(SIGKILL);
  EXPECT_EQ(ranks[0].hear(), "answered");
}

}  // namespace
}  // namespace esp::net
