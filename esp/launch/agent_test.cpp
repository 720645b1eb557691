#include "esp/launch/agent.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "esp/base/error.h"
#include "esp/net/reserved_port.h"

namespace esp::launch {
namespace {

using testing::HasSubstr;

class AgentTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string form = testing::TempDir() + "agent-XXXXXX";
    folder_ = ::mkdtemp(form.data());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  AgentOptions shell(const std::string& script, int per_node = 2) const {
    AgentOptions options;
    options.per_node = per_node;
    options.command = {"/bin/bash", "-c", script};
    options.environment["FOLDER"] = folder_;
    options.stop_timeout = std::chrono::milliseconds(50);
    return options;
  }
  std::string read(const std::string& name) const {
    std::ifstream file(folder_ + "/" + name);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // Runs one agent per host, with all hosts on this machine.
  std::vector<std::string> run_hosts(AgentOptions options, int num_nodes) const {
    options.num_nodes = num_nodes;
    options.secret = net::Secret(std::string(32, 's'));
    const net::ReservedPort held;
    options.endpoint = fmt::format("127.0.0.1:{}", held.number());
    std::vector<std::string> said(static_cast<size_t>(num_nodes));
    std::vector<std::thread> hosts;
    for (int node = 0; node < num_nodes; ++node)
      hosts.emplace_back([&said, node, mine = options]() mutable {
        mine.node_rank = node;
        try {
          said[static_cast<size_t>(node)] = std::to_string(run_agent(mine));
        } catch (const Error& error) {
          said[static_cast<size_t>(node)] = error.what();
        }
      });
    for (std::thread& host : hosts) host.join();
    return said;
  }

  std::string folder_;
};

TEST_F(AgentTest, RestartsUntilAllRanksSucceed) {
  // Rank 1 fails in the first two rounds.
  AgentOptions options = shell(
      "echo $TORCHELASTIC_RESTART_COUNT >> $FOLDER/rounds-$RANK;"
      "[ $RANK = 1 ] && [ $TORCHELASTIC_RESTART_COUNT -lt 2 ] && exit 1; exit 0");
  options.max_restarts = 3;
  testing::internal::CaptureStderr();
  EXPECT_EQ(run_agent(options), 0);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("rank 1 exited with code 1"));
  EXPECT_EQ(read("rounds-1"), "0\n1\n2\n");
}

TEST_F(AgentTest, FailsAfterTheLastRestart) {
  AgentOptions options = shell("echo x >> $FOLDER/starts-$RANK; kill -9 $$", 1);
  options.max_restarts = 1;
  testing::internal::CaptureStderr();
  try {
    run_agent(options);
    ADD_FAILURE() << "run_agent returned although every rank was killed";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::comm);
    EXPECT_THAT(error.what(), HasSubstr("rank 0 killed (SIGKILL)"));
  }
  testing::internal::GetCapturedStderr();
  EXPECT_EQ(read("starts-0"), "x\nx\n");
}

TEST_F(AgentTest, DoesNotRestartAfterAPermanentFailure) {
  AgentOptions options = shell("echo x >> $FOLDER/starts; exit 2", 1);
  options.max_restarts = 5;
  EXPECT_THROW(run_agent(options), Error);
  EXPECT_EQ(read("starts"), "x\n");
  EXPECT_TRUE(worth_restarting(3));
  EXPECT_TRUE(worth_restarting(137));
  EXPECT_FALSE(worth_restarting(4));
  EXPECT_FALSE(worth_restarting(5));
  EXPECT_FALSE(worth_restarting(127));
}

TEST_F(AgentTest, ReportsRootCauseWhenRestartsMakeNoProgress) {
  AgentOptions options = shell("echo x >> $FOLDER/starts-$RANK; echo why >&2; exit 3", 1);
  options.max_restarts = 1000;
  options.highest_step = [] { return 7; };
  int restarting = 0;
  options.on_restart = [&restarting] { ++restarting; };
  testing::internal::CaptureStderr();
  try {
    run_agent(options);
    ADD_FAILURE() << "run_agent returned although every start failed";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::comm);
    EXPECT_THAT(error.what(), HasSubstr("rank 0 exited with code 3"));
    EXPECT_THAT(error.what(), HasSubstr("3 consecutive restarts made no progress beyond step 7"));
  }
  testing::internal::GetCapturedStderr();
  EXPECT_EQ(read("starts-0"), "x\nx\nx\nx\n");
  EXPECT_EQ(restarting, 3);
}

TEST_F(AgentTest, KeepsRestartingWhileTrainingMakesProgress) {
  AgentOptions options = shell("echo x >> $FOLDER/starts; [ $(grep -c x $FOLDER/starts) = 7 ] && exit 0; exit 3", 1);
  options.max_restarts = 1000;
  // every third start counts as one step: each start appends 2 bytes to the file
  options.highest_step = [this] { return static_cast<int64_t>(read("starts").size() / 6); };
  testing::internal::CaptureStderr();
  EXPECT_EQ(run_agent(options), 0);
  testing::internal::GetCapturedStderr();
}

TEST_F(AgentTest, EndsJobOnAllHostsWhenRestartsMakeNoProgress) {
  AgentOptions options = shell("echo x >> $FOLDER/starts-$RANK; exit 3", 1);
  options.max_restarts = 1000;
  options.highest_step = [] { return 7; };
  for (const std::string& said : run_hosts(options, 2)) EXPECT_THAT(said, HasSubstr("no progress beyond step 7"));
  EXPECT_EQ(read("starts-0"), "x\nx\nx\nx\n");
}

TEST_F(AgentTest, NumbersRanksAcrossHosts) {
  const auto said = run_hosts(
      shell("echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK > $FOLDER/who-$RANK; exit 0"), 3);
  EXPECT_EQ(said, (std::vector<std::string>{"0", "0", "0"}));
  for (int rank = 0; rank < 6; ++rank)
    EXPECT_EQ(read(fmt::format("who-{}", rank)), fmt::format("{}/6 {}/2 {}\n", rank, rank % 2, rank / 2));
}

TEST_F(AgentTest, FailureOnOneHostRestartsAllHosts) {
  // In the first round rank 3 fails after all ranks have started, while the other ranks sleep. The agents end the
  // sleeping ranks, and the second round succeeds.
  AgentOptions options = shell(
      "echo $TORCHELASTIC_RESTART_COUNT >> $FOLDER/rounds-$RANK; [ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0;"
      "[ $RANK = 3 ] || exec sleep 100;"
      "until [ $(ls $FOLDER | grep -c rounds) = 4 ]; do sleep 0.01; done; exit 9");
  options.max_restarts = 1;
  testing::internal::CaptureStderr();
  EXPECT_EQ(run_hosts(options, 2), (std::vector<std::string>{"0", "0"}));
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("rank 3 exited with code 9"));
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(read(fmt::format("rounds-{}", rank)), "0\n1\n");
}

TEST_F(AgentTest, RefusesSeveralHostsWithoutEndpointOrSecret) {
  AgentOptions options = shell("true");
  options.num_nodes = 2;
  auto words = [&] {
    try {
      run_agent(options);
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(words(), HasSubstr("--rdzv-endpoint"));
  options.endpoint = "127.0.0.1:1";
  EXPECT_THAT(words(), HasSubstr("--secret-file"));
  options.node_rank = 2;
  EXPECT_THAT(words(), HasSubstr("expected 0 to 1"));
}

TEST(RootCause, PrefersDeathBySignalToLostPeer) {
  const std::vector<RoundResult> ends = {{0, 3, {}}, {1, 137, {}}, {2, 1, {}}};
  EXPECT_EQ(root_cause(ends).node, 1);
  EXPECT_EQ(root_cause({{0, 0, {}}, {1, 75, {}}}).exit_code, 75);
}

}  // namespace
}  // namespace esp::launch
