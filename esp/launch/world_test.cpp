#include "esp/launch/world.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "esp/base/error.h"

namespace esp::launch {
namespace {

using testing::HasSubstr;

TEST(JoinOptions, RanksUnderEspalierLaunchDoNotHostHub) {
  net::RendezvousOptions options = join_options({{"RANK", "0"},
                                                 {"WORLD_SIZE", "2"},
                                                 {"LOCAL_RANK", "0"},
                                                 {"LOCAL_WORLD_SIZE", "2"},
                                                 {"MASTER_ADDR", "127.0.0.1"},
                                                 {"MASTER_PORT", "4321"},
                                                 {"ESPALIER_JOB", "local-1"}});
  EXPECT_FALSE(options.host_hub);
  EXPECT_EQ(options.endpoint, "tcp://127.0.0.1:4321");
  EXPECT_EQ(options.job, "local-1");
  EXPECT_EQ(options.local_size, 2);
}

Environment torchrun(int rank) {
  return {{"RANK", std::to_string(rank)}, {"WORLD_SIZE", "2"},        {"LOCAL_RANK", std::to_string(rank)},
          {"LOCAL_WORLD_SIZE", "2"},      {"MASTER_ADDR", "fe80::1"}, {"MASTER_PORT", "29500"}};
}

TEST(JoinOptions, RankZeroHostsHubUnderOtherLaunchers) {
  EXPECT_TRUE(join_options(torchrun(0)).host_hub);
  EXPECT_EQ(join_options(torchrun(0)).endpoint, "tcp://[fe80::1]:29500");
  EXPECT_FALSE(join_options(torchrun(1)).host_hub);
}

TEST(JoinOptions, UsesMpiRendezvousUnderMpirunWithoutMasterAddr) {
  EXPECT_EQ(join_options({}).size, 1);
  Environment mpich = {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}};
  EXPECT_EQ(join_options(mpich).endpoint, "mpi://mpich");
  EXPECT_FALSE(join_options(mpich).host_hub);
  EXPECT_EQ(join_options({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "3"}}).endpoint, "mpi://openmpi");
  mpich["MPI_LOCALRANKID"] = "1", mpich["MPI_LOCALNRANKS"] = "2";
  mpich["MASTER_ADDR"] = "127.0.0.1", mpich["MASTER_PORT"] = "4321";
  EXPECT_EQ(join_options(mpich).endpoint, "tcp://127.0.0.1:4321");
  EXPECT_EQ(join_options(mpich, true).endpoint, "mpi://mpich") << "the MPI transport always uses the MPI rendezvous";
}

TEST(JoinOptions, DoesNotListenOnMasterPortThatTorchrunStoreUses) {
  using Port = net::RendezvousOptions::Port;
  Environment workers = torchrun(0);
  EXPECT_EQ(join_options(workers).port, Port::shared);
  EXPECT_EQ(join_options(workers).job, "port-29500");
  workers["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  workers["TORCHELASTIC_RUN_ID"] = "7";
  EXPECT_EQ(join_options(workers).port, Port::taken);
  EXPECT_EQ(join_options(workers).job, "port-29500/7");
  workers["ESPALIER_JOB"] = "local-1";
  EXPECT_EQ(join_options(workers).port, Port::own) << "the hub of espalier launch has a separate port";
}

TEST(JoinOptions, ReadsTimeoutsFromEnvironment) {
  Environment workers = torchrun(0);
  EXPECT_EQ(join_options(workers).net.start_timeout, std::chrono::minutes(10));
  EXPECT_EQ(join_options(workers).net.link_timeout, std::chrono::seconds(30));
  workers["ESPALIER_START_TIMEOUT_S"] = "3";
  workers["ESPALIER_LINK_TIMEOUT_S"] = "0.5";
  EXPECT_EQ(join_options(workers).net.start_timeout, std::chrono::seconds(3));
  EXPECT_EQ(join_options(workers).net.link_timeout, std::chrono::milliseconds(500));
  for (const char* wrong : {"soon", "0", "-1", "3s", "1e99"}) {
    workers["ESPALIER_LINK_TIMEOUT_S"] = wrong;
    EXPECT_THROW(join_options(workers), UsageError) << wrong;
  }
}

TEST(JoinOptions, MpiTransportNeedsMpirun) {
  try {
    join_options(torchrun(0), true);
    FAIL() << "accepted";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("torchrun started these"), HasSubstr("mpirun -n 2")));
  }
}

TEST(JoinOptions, RanksOnSeveralHostsNeedASecret) {
  Environment apart = torchrun(0);
  apart["LOCAL_WORLD_SIZE"] = "1";
  try {
    join_options(apart);
    FAIL() << "accepted";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("ESPALIER_SECRET_FILE"));
  }
}

TEST(JoinOptions, LoopbackAddressMeansOneHost) {
  const char* folder = std::getenv("TMPDIR") ? std::getenv("TMPDIR") : "/tmp";
  for (const char* address : {"127.0.0.1", "localhost", "::1"}) {
    const net::RendezvousOptions options = join_options({{"RANK", "1"},
                                                         {"WORLD_SIZE", "2"},
                                                         {"MASTER_ADDR", address},
                                                         {"MASTER_PORT", "4321"},
                                                         {"XDG_RUNTIME_DIR", folder}});
    EXPECT_FALSE(options.secret.bytes().empty()) << address;
  }
}

TEST(JoinOptions, EncryptionAcceptsOnlyZeroAndOne) {
  EXPECT_FALSE(join_options({}).encrypt);
  EXPECT_FALSE(join_options({{"ESPALIER_ENCRYPT", "0"}}).encrypt);
  EXPECT_TRUE(join_options({{"ESPALIER_ENCRYPT", "1"}}).encrypt);
  // An invalid value is an error. Otherwise a user who asked for encryption could run without it.
  EXPECT_THROW(join_options({{"ESPALIER_ENCRYPT", "yes"}}), UsageError);
}

TEST(LocalWorld, PassesTheHubAddressToRanks) {
  LocalOptions options;
  options.num_ranks = 2;
  options.output = LocalOptions::Output::stderr_tail;
  options.command = {"/bin/bash", "-c", "echo $MASTER_ADDR:$MASTER_PORT:${#ESPALIER_JOB} $(wc -c <&3) >&2; exit 5"};
  LocalWorld world = start_local_world(options);
  ASSERT_TRUE(world.job->wait(Deadline::after_ms(20000)));
  EXPECT_EQ(world.job->failure()->stderr_tail, fmt::format("127.0.0.1:{}:22 32\n", world.hub->port()));
}

}  // namespace
}  // namespace esp::launch
