#include "esp/launch/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "esp/base/error.h"

namespace esp::launch {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string refusal(const Environment& environment) {
  try {
    read_environment(environment);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

const Environment kTorchrun = {{"RANK", "3"},
                               {"WORLD_SIZE", "8"},
                               {"LOCAL_RANK", "1"},
                               {"LOCAL_WORLD_SIZE", "2"},
                               {"MASTER_ADDR", "10.0.0.1"},
                               {"MASTER_PORT", "29500"}};
const Environment kSlurm = {{"SLURM_PROCID", "3"},
                            {"SLURM_NTASKS", "7"},
                            {"SLURM_LOCALID", "1"},
                            {"SLURM_NODEID", "1"},
                            {"SLURM_TASKS_PER_NODE", "2(x3),1"},
                            {"SLURM_STEP_NODELIST", "node[08-11]"},
                            {"SLURM_JOB_ID", "4242"},
                            {"SLURM_STEP_ID", "0"}};
const Environment kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                              {"OMPI_COMM_WORLD_SIZE", "4"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}};

Environment without(Environment environment, const std::string& name) {
  environment.erase(name);
  return environment;
}

Environment joined(Environment environment, const Environment& more) {
  for (const auto& [name, value] : more) environment[name] = value;
  return environment;
}

TEST(Environment, TreatsEmptyEnvironmentAsOneRank) {
  Placement place = read_environment({{"PATH", "/bin"}});
  EXPECT_EQ(place.launcher, "none");
  EXPECT_EQ(place.size, 1);
}

TEST(Environment, ReadsTorchrun) {
  Placement place = read_environment(kTorchrun);
  EXPECT_EQ(place.launcher, "torchrun");
  EXPECT_EQ(place.rank, 3);
  EXPECT_EQ(place.size, 8);
  EXPECT_EQ(place.local_rank, 1);
  EXPECT_EQ(place.local_size, 2);
  EXPECT_EQ(place.master_address, "10.0.0.1");
  EXPECT_EQ(place.master_port, 29500);
}

TEST(Environment, ReadsPyTorchJobWithoutLocalRanks) {
  Placement place = read_environment(without(without(kTorchrun, "LOCAL_RANK"), "LOCAL_WORLD_SIZE"));
  EXPECT_EQ(place.local_rank, 0);
  EXPECT_EQ(place.local_size, 1);
}

TEST(Environment, ReadsSlurmAndDerivesTheEndpoint) {
  Placement place = read_environment(kSlurm);
  EXPECT_EQ(place.launcher, "slurm");
  EXPECT_EQ(place.rank, 3);
  EXPECT_EQ(place.local_size, 2);
  EXPECT_EQ(place.master_address, "node08");
  EXPECT_GE(place.master_port, 20000);
  Environment other_step = kSlurm;
  other_step["SLURM_STEP_ID"] = "1";
  EXPECT_NE(read_environment(other_step).master_port, place.master_port);
  Environment last_node = joined(kSlurm, {{"SLURM_PROCID", "6"}, {"SLURM_LOCALID", "0"}, {"SLURM_NODEID", "3"}});
  EXPECT_EQ(read_environment(last_node).local_size, 1);
}

TEST(Environment, ReadsOpenMpiAndMpich) {
  Placement place = read_environment(kOpenMpi);
  EXPECT_EQ(place.launcher, "openmpi");
  EXPECT_EQ(place.local_rank, 1);
  EXPECT_EQ(place.master_address, "");
  place = read_environment({{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}, {"MASTER_ADDR", "::1"}, {"MASTER_PORT", "1234"}});
  EXPECT_EQ(place.launcher, "mpich");
  EXPECT_EQ(place.rank, 2);
  EXPECT_EQ(place.master_address, "::1");
}

TEST(Environment, NamesEveryMissingVariable) {
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
    EXPECT_THAT(refusal(without(kTorchrun, name)), HasSubstr(name));
  for (const char* name : {"SLURM_NTASKS", "SLURM_LOCALID", "SLURM_TASKS_PER_NODE", "SLURM_STEP_NODELIST",
                           "SLURM_JOB_ID", "SLURM_STEP_ID"})
    EXPECT_THAT(refusal(without(kSlurm, name)), HasSubstr(std::string(name) + " is not set"));
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"})
    EXPECT_THAT(refusal(without(kOpenMpi, name)), HasSubstr(name));
  EXPECT_THAT(refusal({{"PMI_RANK", "0"}}), HasSubstr("PMI_SIZE is not set"));
}

TEST(Environment, NamesLaunchersThatContradictEachOther) {
  EXPECT_THAT(refusal(joined(kTorchrun, kOpenMpi)),
              testing::AllOf(HasSubstr("torchrun says rank 3 of 8"), HasSubstr("openmpi says rank 1 of 4")));
  EXPECT_THAT(refusal(joined(kTorchrun, kSlurm)), HasSubstr("contradicts"));
}

TEST(Environment, AcceptsConsistentLaunchersAndTorchrunInsideSlurm) {
  Environment both = joined(kOpenMpi, {{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "1"}});
  EXPECT_EQ(read_environment(both).launcher, "torchrun");
  Environment inside = joined(kTorchrun, {{"GROUP_RANK", "1"},
                                          {"SLURM_PROCID", "1"},
                                          {"SLURM_NTASKS", "4"},
                                          {"SLURM_LOCALID", "0"},
                                          {"SLURM_NODEID", "1"},
                                          {"SLURM_TASKS_PER_NODE", "1(x4)"},
                                          {"SLURM_STEP_NODELIST", "n[1-4]"},
                                          {"SLURM_JOB_ID", "1"},
                                          {"SLURM_STEP_ID", "0"}});
  EXPECT_EQ(read_environment(inside).launcher, "torchrun");
}

TEST(Environment, RefusesInvalidValues) {
  EXPECT_THAT(refusal(joined(kTorchrun, {{"RANK", "three"}})), HasSubstr("RANK: got \"three\""));
  EXPECT_THAT(refusal(joined(kTorchrun, {{"RANK", "8"}})), HasSubstr("rank 8 of 8"));
  EXPECT_THAT(refusal(joined(kTorchrun, {{"RANK", "-1"}})), HasSubstr("RANK"));
  EXPECT_THAT(refusal(joined(kTorchrun, {{"MASTER_PORT", "70000"}})), HasSubstr("65535"));
  EXPECT_THAT(refusal(joined(kTorchrun, {{"LOCAL_RANK", "2"}})), HasSubstr("local rank 2 of 2"));
  for (const char* tasks : {"x", "1(x-1)", "1(x0)"})
    EXPECT_THAT(refusal(joined(kSlurm, {{"SLURM_TASKS_PER_NODE", tasks}})), HasSubstr("SLURM_TASKS_PER_NODE"));
}

TEST(ExpandHosts, ExpandsBrackets) {
  EXPECT_THAT(expand_hosts("node[01-03,7],gpu1"), ElementsAre("node01", "node02", "node03", "node7", "gpu1"));
  EXPECT_THAT(expand_hosts("a"), ElementsAre("a"));
  EXPECT_THAT(expand_hosts("a,b"), ElementsAre("a", "b"));
  EXPECT_THROW(expand_hosts("n[1-"), UsageError);
  EXPECT_THROW(expand_hosts("n[3-1]"), UsageError);
  EXPECT_THROW(expand_hosts("n[x]"), UsageError);
}

}  // namespace
}  // namespace esp::launch
