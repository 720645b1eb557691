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

TEST(Transports, AnUnknownNameListsTheKnown) {
  auto worlds = thread_worlds(2);
  std::string text = message_of([&] { open_transport("inprok", worlds[0], worlds[0].everyone()); });
  for (const char* part : {"inprok", "did you mean \"inproc\"", "auto", "shm", "tcp", "virtual"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
}

TEST(Transports, OneThatDoesNotReachSaysWhoAndWhichWould) {
  auto worlds = thread_worlds(3);
  std::string text = message_of([&] { open_transport("tcp", worlds[0], worlds[0].everyone()); });
  EXPECT_NE(text.find("rank 0"), std::string::npos) << text;
  EXPECT_NE(text.find("inproc, shm would"), std::string::npos) << text;
}

TEST(Transports, OneThatIsNotHereSaysWhatItIsFor) {
  auto worlds = thread_worlds(2);
  const std::string text = message_of([&] { open_transport("mpi", worlds[0], worlds[0].everyone()); });
  EXPECT_NE(text.find("is for processes an mpirun started"), std::string::npos) << text;
  EXPECT_NE(text.find("inproc, shm would"), std::string::npos) << text;
}

TEST(Transports, AutoTakesTheFirstThatReachesAll) {
  auto worlds = thread_worlds(2);
  EXPECT_EQ(open_transport("auto", worlds[0], worlds[0].everyone())->name(), "inproc");
}

TEST(Transports, AutoSaysWhenNobodyReaches) {
  auto worlds = thread_worlds(2);
  for (World& world : worlds) {
    world.peers[1].host = "elsewhere";
    world.peers[1].process = 0;
  }
  std::string text = message_of([&] { open_transport("auto", worlds[0], worlds[0].everyone()); });
  EXPECT_NE(text.find("no transport reaches from rank 0 to rank 1"), std::string::npos) << text;
}

}  // namespace
}  // namespace esp::net
