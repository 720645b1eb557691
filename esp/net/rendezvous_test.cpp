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
#include "esp/net/child_process.h"
#include "esp/net/failure_detector.h"
#include "esp/net/listener.h"
#include "esp/net/store/hub.h"

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

// Rank 0 hosts the Hub and publishes its address in a directory.
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

using Body = std::function<void(World& world, ChildProcess& parent)>;

// Starts one process per rank. Each rank sends "ready" once it has its World. When all are ready, each runs the body.
std::vector<ChildProcess> fork_ranks(const Directory& directory, int size, const Body& body) {
  std::vector<ChildProcess> ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.emplace_back([&, rank](ChildProcess& parent) {
      auto world = rendezvous(options(directory, rank, size), soon());
      parent.write_line("ready");
      parent.read_line();
      body(*world, parent);
    });
  for (ChildProcess& rank : ranks) EXPECT_EQ(rank.read_line(), "ready");
  for (ChildProcess& rank : ranks) rank.write_line("go");
  return ranks;
}

// Waits for the first failure in PeerStatus and returns the error that a wait of this group would throw.
std::string first_fault(const World& world, uint64_t group = 1) {
  auto deadline = soon();
  while (!deadline.passed()) {
    try {
      world.peer_status->check(group, world.world_group().members);
    } catch (const CommError& error) {
      return fmt::format("{} {}", error.peer(), error.what());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return "no failure before the deadline";
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

TEST(Rendezvous, GivesEveryRankAllPeers) {
  Directory directory;
  auto ranks = fork_ranks(directory, 4, [](World& world, ChildProcess& parent) {
    std::string seen;
    for (int peer = 0; peer < world.size; ++peer)
      seen += fmt::format("{}{}", world.same_host(world.rank, peer), world.peers[static_cast<size_t>(peer)].pid > 0);
    world.store->set(fmt::format("seen {}", world.rank), seen);
    std::string last = world.store->get("seen 3", soon());
    parent.write_line(seen == last ? world.job : "differs");
  });
  std::string job = ranks[0].read_line();
  EXPECT_EQ(job.rfind("test-", 0), 0u) << job;
  for (size_t rank = 1; rank < 4; ++rank) EXPECT_EQ(ranks[rank].read_line(), job);
  for (ChildProcess& rank : ranks) EXPECT_EQ(rank.wait(), 0);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory.path()), {}), 1)
      << "only the lock file must remain";
}

TEST(Rendezvous, ListensOnLoopbackOnlyOnOneHost) {
  Directory directory;
  auto ranks = fork_ranks(directory, 2, [](World& world, ChildProcess& parent) {
    std::string text;
    for (const auto& address : listening_addresses()) text += address + " ";
    parent.write_line(text);
    world.store->add("done", 1);
  });
  EXPECT_EQ(ranks[0].read_line(), "0100007F 0100007F ") << "hub and listener";
  EXPECT_EQ(ranks[1].read_line(), "0100007F ");
}

TEST(Rendezvous, LeaksNoThreadsOrDescriptors) {
  Directory directory;
  std::vector<ChildProcess> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank](ChildProcess& parent) {
      auto count = [] {
        return fmt::format("{} threads {} descriptors", count_entries("/proc/self/task"),
                           count_entries("/proc/self/fd"));
      };
      auto round = [&] { rendezvous(options(directory, rank, 2), soon())->store->add("round", 1); };
      round();  // the first round opens the descriptors that libraries keep open
      std::string before = count();
      for (int i = 0; i < 5; ++i) round();
      parent.write_line(before == count() ? "same" : before + ", then " + count());
    });
  for (ChildProcess& rank : ranks) EXPECT_EQ(rank.read_line(), "same");
}

TEST(Rendezvous, WorksWithLauncherHubOverTcp) {
  std::vector<ChildProcess> ranks;
  for (int rank = 0; rank < 3; ++rank)
    ranks.emplace_back([&, rank](ChildProcess& parent) {
      Directory unused;
      auto mine = options(unused, rank, 3);
      mine.endpoint = parent.read_line();
      mine.host_hub = false;
      mine.local_size = 0;
      auto world = rendezvous(mine, soon());
      parent.write_line(world->peers[static_cast<size_t>(2 - rank)].address);
      parent.read_line();
      parent.write_line(first_fault(*world));
    });
  HubOptions hub_options;
  hub_options.size = 3;
  hub_options.job = "test";
  hub_options.secret = Secret(std::string(32, 's'));
  Hub hub(hub_options);
  for (ChildProcess& rank : ranks) rank.write_line(fmt::format("tcp://localhost:{}", hub.port()));
  for (ChildProcess& rank : ranks) EXPECT_EQ(rank.read_line(), "127.0.0.1");
  ranks[1].kill(SIGKILL);
  for (int rank : {0, 2}) ranks[static_cast<size_t>(rank)].write_line("go");
  for (int rank : {0, 2}) EXPECT_EQ(ranks[static_cast<size_t>(rank)].read_line().rfind("1 rank 1 ", 0), 0u);
}

TEST(Rendezvous, RejectsOtherJobAndOtherSecret) {
  std::vector<ChildProcess> foreign;
  for (int kind = 0; kind < 2; ++kind)
    foreign.emplace_back([&, kind](ChildProcess& parent) {
      Directory unused;
      auto mine = options(unused, 1, 2);
      mine.endpoint = parent.read_line();
      (kind == 0 ? mine.job : mine.endpoint) += kind == 0 ? " of another" : "";
      if (kind == 1) mine.secret = Secret(std::string(32, 'x'));
      rendezvous(mine, soon());
    });
  HubOptions hub_options;
  hub_options.size = 2;
  hub_options.job = "test";
  hub_options.secret = Secret(std::string(32, 's'));
  Hub hub(hub_options);
  for (ChildProcess& server : foreign) server.write_line(fmt::format("tcp://127.0.0.1:{}", hub.port()));
  for (ChildProcess& server : foreign) {
    std::string text = server.read_line();
    EXPECT_EQ(text.rfind("threw the handshake was refused", 0), 0u) << text;
  }
}

TEST(Rendezvous, SeparatesConcurrentJobs) {
  constexpr int kJobs = 6;
  Directory directory;  // all jobs share one directory
  std::vector<ChildProcess> ranks;
  for (int job = 0; job < kJobs; ++job)
    for (int rank = 0; rank < 2; ++rank)
      ranks.emplace_back([&, job, rank](ChildProcess& parent) {
        auto mine = options(directory, rank, 2);
        mine.job = fmt::format("job {}", job);
        auto world = rendezvous(mine, soon());
        world->store->set(fmt::format("from {}", rank), mine.job);
        bool right = world->store->get(fmt::format("from {}", 1 - rank), soon()) == mine.job;
        parent.write_line(right ? world->job : "mixed");
      });
  for (size_t job = 0; job < kJobs; ++job) {
    std::string id = ranks[2 * job].read_line();
    EXPECT_EQ(id.rfind(fmt::format("job {}-", job), 0), 0u) << id;
    EXPECT_EQ(ranks[2 * job + 1].read_line(), id);
  }
}

// A port with a foreign listener, which either stays silent or closes connections at once.
class ForeignServer {
 public:
  explicit ForeignServer(bool closes) : listening_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
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

RendezvousOptions options_for_port(int port, int rank, const std::string& job) {
  RendezvousOptions made;
  made.rank = rank;
  made.size = 2;
  made.endpoint = fmt::format("tcp://127.0.0.1:{}", port);
  made.port = RendezvousOptions::Port::shared;
  made.host_hub = rank == 0;
  made.secret = Secret(std::string(32, 's'));
  // The job is named as in launch/world.cpp: the name contains the port.
  made.job = fmt::format("port-{}/{}", port, job);
  made.log = Log(LogLevel::warn, rank);
  return made;
}

// Forks two ranks that rendezvous at a port which they receive later. Fork before any thread starts: a lock that
// another thread of the parent holds during fork() stays locked in the child.
std::vector<ChildProcess> fork_two_ranks(const std::string& job) {
  std::vector<ChildProcess> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([=](ChildProcess& parent) {
      const int port = std::stoi(parent.read_line());
      auto world = rendezvous(options_for_port(port, rank, job), soon());
      parent.write_line(world->job);
      parent.read_line();
    });
  return ranks;
}

void send_port(std::vector<ChildProcess>& ranks, int port) {
  for (ChildProcess& rank : ranks) rank.write_line(std::to_string(port));
}

TEST(Rendezvous, RanksUseAnotherPortWhenPortIsTaken) {
  for (bool closes : {true, false}) {
    auto ranks = fork_two_ranks("shared");
    ForeignServer server(closes);
    send_port(ranks, server.port());
    std::string job = ranks[0].read_line();
    EXPECT_EQ(job.rfind(fmt::format("port-{}/shared-", server.port()), 0), 0u) << job;
    EXPECT_EQ(ranks[1].read_line(), job);
    for (ChildProcess& rank : ranks) rank.write_line("end");
    for (ChildProcess& rank : ranks) EXPECT_EQ(rank.wait(), 0);
  }
}

TEST(Rendezvous, SeparatesTwoJobsWithOnePort) {
  const int port = [] { return ForeignServer(true).port(); }();  // the server has ended, so its port is free again
  std::vector<std::vector<ChildProcess>> jobs;
  for (const char* job : {"one", "other"}) jobs.push_back(fork_two_ranks(job));
  for (auto& ranks : jobs) send_port(ranks, port);
  std::string one = jobs[0][0].read_line(), other = jobs[1][0].read_line();
  EXPECT_EQ(one.rfind(fmt::format("port-{}/one-", port), 0), 0u) << one;
  EXPECT_EQ(other.rfind(fmt::format("port-{}/other-", port), 0), 0u) << other;
  EXPECT_EQ(jobs[0][1].read_line(), one);
  EXPECT_EQ(jobs[1][1].read_line(), other);
  for (auto& ranks : jobs)
    for (ChildProcess& rank : ranks) rank.write_line("end");
}

TEST(Rendezvous, RejectsSecondRunWithSameNameAndPort) {
  const int port = [] { return ForeignServer(true).port(); }();
  auto ranks = fork_two_ranks("same");
  send_port(ranks, port);
  std::string job = ranks[0].read_line();
  EXPECT_EQ(ranks[1].read_line(), job);
  ChildProcess second([&](ChildProcess&) { rendezvous(options_for_port(port, 0, "same"), soon()); });
  EXPECT_EQ(second.read_line(), fmt::format("threw 127.0.0.1 port {}: another run of this user uses the port. Give "
                                            "each run a different MASTER_PORT",
                                            port));
  for (ChildProcess& rank : ranks) rank.write_line("end");
}

TEST(Rendezvous, FailsAtGivenDeadline) {
  const int port = [] { return ForeignServer(true).port(); }();
  auto begun = Clock::now();
  ChildProcess alone([&](ChildProcess&) { rendezvous(options_for_port(port, 1, "late"), Deadline::after_ms(1000)); });
  std::string text = alone.read_line();
  EXPECT_EQ(text.rfind(fmt::format("threw no connection to rank 0 at tcp://127.0.0.1:{} within 1", port), 0), 0u)
      << text;
  EXPECT_LT(Clock::now() - begun, std::chrono::seconds(20));
  ChildProcess late([&](ChildProcess& parent) {
    parent.read_line();
    parent.write_line(rendezvous(options_for_port(port, 0, "late"), soon())->job);
  });
  ChildProcess early(
      [&](ChildProcess& parent) { parent.write_line(rendezvous(options_for_port(port, 1, "late"), soon())->job); });
  // longer than the timeout with which the first rank waited
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  late.write_line("go");
  EXPECT_EQ(early.read_line(), late.read_line());
}

TEST(Rendezvous, CompletesWithSixtyFourLocalRanks) {
  Directory directory;
  auto start = Clock::now();
  auto ranks = fork_ranks(directory, 64, [](World& world, ChildProcess& parent) {
    world.store->add("arrived", 1);
    parent.write_line(std::to_string(world.peers.size()));
  });
  auto ready_ms = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start).count();
  for (ChildProcess& rank : ranks) EXPECT_EQ(rank.read_line(), "64");
  for (ChildProcess& rank : ranks) EXPECT_EQ(rank.wait(), 0);
  RecordProperty("ready_ms", std::to_string(ready_ms));
  std::printf("64 ranks were ready after %lld ms\n", static_cast<long long>(ready_ms));
}

TEST(Rendezvous, TimeoutNamesMissingRanks) {
  Directory directory;
  ChildProcess rank([&](ChildProcess&) { rendezvous(options(directory, 0, 3), Deadline::after_ms(3000)); });
  EXPECT_EQ(
      rank.read_line(),
      "threw 1 of 3 ranks joined; missing: 1-2, within 3 s (start_timeout_s). Start every rank and give all of them "
      "the same endpoint");
}

TEST(FailureDetector, AllSurvivorsNameKilledRank) {
  Directory directory;
  auto ranks = fork_ranks(directory, 4, [](World& world, ChildProcess& parent) {
    parent.write_line(first_fault(world));
    parent.read_line();  // stays until the other ranks have checked: otherwise its exit would be reported too
  });
  ranks[2].kill(SIGKILL);
  for (int rank : {0, 1, 3}) {
    std::string text = ranks[static_cast<size_t>(rank)].read_line();
    EXPECT_EQ(text.rfind("2 rank 2 ", 0), 0u) << text;
  }
}

TEST(FailureDetector, KilledHubFailsEveryGroup) {
  Directory directory;
  auto ranks = fork_ranks(directory, 3, [](World& world, ChildProcess& parent) {
    parent.write_line("here");
    std::string named = first_fault(world);
    try {
      world.peer_status->check(5, {1, 2});
      parent.write_line("a group without rank 0 passed the check");
    } catch (const CommError& error) {
      parent.write_line(fmt::format("{} | {}", named, error.what()));
    }
    parent.read_line();
  });
  for (ChildProcess& rank : ranks) ASSERT_EQ(rank.read_line(), "here");
  ranks[0].kill(SIGKILL);
  for (int rank : {1, 2}) {
    std::string text = ranks[static_cast<size_t>(rank)].read_line();
    EXPECT_EQ(text.rfind("0 rank 0 ", 0), 0u) << text;
    EXPECT_NE(text.find("rank 0 closed its connection"), std::string::npos) << text;
  }
}

TEST(FailureDetector, AbortReachesEveryMemberWithCause) {
  Directory directory;
  auto ranks = fork_ranks(directory, 3, [](World& world, ChildProcess& parent) {
    if (world.rank == 1)
      world.failure_detector->abort(1, {0, 1, 2},
                                    CommError(CommError::Kind::mismatch, 2, "rank 1 sums, rank 2 gathers"));
    parent.write_line(first_fault(world, 1));
    parent.read_line();
  });
  for (ChildProcess& rank : ranks) EXPECT_EQ(rank.read_line(), "2 rank 1 sums, rank 2 gathers");
}

TEST(FailureDetector, RankThatLeavesInOrderIsNotLost) {
  Directory directory;
  auto ranks = fork_ranks(directory, 3, [](World& world, ChildProcess& parent) {
    if (world.rank == 2) return;
    for (auto deadline = soon(); !world.peer_status->has_left(2) && !deadline.passed();)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    // The pause is longer than the detection of a process exit takes.
    parent.read_line();
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    try {
      world.peer_status->check(1, {0, 1, 2});
      world.peer_status->check_present(1, {0, 1});
      world.peer_status->check_present(1, {0, 1, 2});
      parent.write_line("no error");
    } catch (const CommError& error) {
      parent.write_line(fmt::format("{} {}", world.peer_status->is_lost(2), error.what()));
    }
    parent.read_line();  // stays until the other rank has checked: otherwise its exit would be reported too
  });
  EXPECT_EQ(ranks[2].wait(), 0);
  for (int rank : {0, 1}) ranks[static_cast<size_t>(rank)].write_line("it has ended");
  for (int rank : {0, 1}) EXPECT_EQ(ranks[static_cast<size_t>(rank)].read_line(), "false rank 2 has left the job");
}

TEST(FailureDetector, QueryReturnsPositionsAndMarksStoppedRank) {
  Directory directory;
  auto ranks = fork_ranks(directory, 4, [](World& world, ChildProcess& parent) {
    LiveCallPosition position;
    position.enter({static_cast<uint64_t>(10 + world.rank), 7, 100, 0, 0});
    if (world.rank == 1) position.leave();
    world.failure_detector->register_position(world.world_group().id, &position);
    parent.write_line("registered");
    parent.read_line();  // the main thread blocks here, and the detector's thread answers queries
    if (world.rank == 0) {
      std::vector<CallPosition> positions;
      auto late = [&](int rank) { return !positions[static_cast<size_t>(rank)].answered; };
      for (auto deadline = soon(); positions.empty() || ((late(1) || late(2)) && !deadline.passed());)
        positions = world.failure_detector->query_positions(world.world_group(), Deadline::after_ms(1000));
      std::string text;
      for (const CallPosition& each : positions)
        text += each.answered ? fmt::format("{}{} ", each.entered.sequence, each.inside ? "in" : "out") : "silent ";
      parent.write_line(text);
      parent.read_line();
    }
    world.failure_detector->unregister_position(world.world_group().id);
  });
  for (ChildProcess& rank : ranks) EXPECT_EQ(rank.read_line(), "registered");
  ranks[3].kill(SIGSTOP);
  int status = 0;
  waitpid(ranks[3].pid(), &status, WUNTRACED);
  ranks[0].write_line("ask");
  EXPECT_EQ(ranks[0].read_line(), "10in 11out 12in silent ");
  ranks[3].kill(SIGCONT);
}

TEST(FailureDetector, QueryDoesNotWaitForKilledRank) {
  Directory directory;
  auto ranks = fork_ranks(directory, 3, [](World& world, ChildProcess& parent) {
    if (world.rank == 0) {
      parent.read_line();
      parent.write_line("asking");
      world.failure_detector->query_positions(world.world_group(), Deadline::after_ms(120'000));
      parent.write_line("answered");
    }
    parent.read_line();
  });
  ranks[2].kill(SIGSTOP);
  waitpid(ranks[2].pid(), nullptr, WUNTRACED);
  ranks[0].write_line("ask");
  EXPECT_EQ(ranks[0].read_line(), "asking");
  // the process is killed only after the query has been sent
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  ranks[2].kill(SIGKILL);
  EXPECT_EQ(ranks[0].read_line(), "answered");
}

}  // namespace
}  // namespace esp::net
