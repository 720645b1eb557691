#include <gtest/gtest.h>

#include "esp/base/error.h"
#include "esp/net/inproc/threads.h"
#include "esp/net/transport.h"

namespace esp::net {
namespace {

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "(no error)";
}

TEST(Transports, UnknownTransportErrorListsNames) {
  auto worlds = thread_worlds(2);
  std::string text = message_of([&] { open_transport("inprok", worlds[0], worlds[0].world_group()); });
  for (const char* part : {"inprok", "did you mean \"inproc\"", "auto", "shm", "tcp", "virtual"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
}

TEST(Transports, UnreachableErrorNamesRanksAndAlternatives) {
  auto worlds = thread_worlds(3);
  std::string text = message_of([&] { open_transport("tcp", worlds[0], worlds[0].world_group()); });
  EXPECT_NE(text.find("rank 0"), std::string::npos) << text;
  EXPECT_NE(text.find("Use inproc or shm"), std::string::npos) << text;
}

TEST(Transports, UnavailableErrorNamesRequirement) {
  auto worlds = thread_worlds(2);
  const std::string text = message_of([&] { open_transport("mpi", worlds[0], worlds[0].world_group()); });
  EXPECT_NE(text.find("connects only processes started by one mpirun"), std::string::npos) << text;
  EXPECT_NE(text.find("Use inproc or shm"), std::string::npos) << text;
}

TEST(Transports, AutoSelectsFirstTransportThatConnectsAllRanks) {
  auto worlds = thread_worlds(2);
  EXPECT_EQ(open_transport("auto", worlds[0], worlds[0].world_group())->name(), "inproc");
}

TEST(Transports, AutoFailsWhenNoTransportConnectsTwoRanks) {
  auto worlds = thread_worlds(2);
  for (World& world : worlds) {
    world.peers[1].host = "elsewhere";
    world.peers[1].process = 0;
  }
  std::string text = message_of([&] { open_transport("auto", worlds[0], worlds[0].world_group()); });
  EXPECT_NE(text.find("no transport connects rank 0 with rank 1"), std::string::npos) << text;
}

}  // namespace
}  // namespace esp::net
