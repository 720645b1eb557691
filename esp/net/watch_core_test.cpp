#include "esp/net/watch_core.h"

#include <gtest/gtest.h>

namespace esp::net {
namespace {

using std::chrono::milliseconds;

class Watcher {
 public:
  explicit Watcher(int rank, int hub_rank = 0)
      : core(rank, hub_rank, milliseconds(250), fate, Log(LogLevel::error, rank),
             {[this](Kind kind, const std::string&) { posted.push_back(kind); },
              [](uint64_t) {
                return Standing{true, {}, false};
              },
              [](const Report&) {}},
             begin) {}

  std::string fault(const std::vector<int>& members) const {
    try {
      fate->check(1, members);
    } catch (const CommError& error) {
      return error.what();
    }
    return "none";
  }

  const Clock::time_point begin{};
  std::shared_ptr<Fate> fate = std::make_shared<Fate>();
  std::vector<Kind> posted;
  WatchCore core;
};

// A wait looks whenever the epoch moves: were it moved for the loss and again for the doom, whoever looked in between
// would find a group without the hub's rank that may go on, though nobody is left to tell it of losses.
TEST(WatchCore, AClosedHubIsLostAndDoomsAllAtOnce) {
  Watcher watcher(1);
  watcher.core.hub_closed("closed its connection");
  EXPECT_EQ(watcher.fate->epoch(), 1u);
  EXPECT_EQ(watcher.fault({0, 1, 2}), "rank 0 closed its connection");
  EXPECT_EQ(watcher.fault({1, 2}), "rank 0 closed its connection");
  watcher.core.hub_closed("closed its connection");
  EXPECT_EQ(watcher.fate->epoch(), 1u);
}

TEST(WatchCore, AHubOfTheLaunchersIsNoRanksLoss) {
  Watcher watcher(1, -1);
  watcher.core.hub_closed("closed its connection");
  EXPECT_FALSE(watcher.fate->lost(0));
  EXPECT_EQ(watcher.fault({0, 1}), "the launcher closed its connection");
}

TEST(WatchCore, ANeighboursEndIsAskedAboutAndJudgedWhenNoWordComes) {
  Watcher watcher(1);
  watcher.core.neighbour_ended(2, watcher.begin);
  ASSERT_EQ(watcher.posted.size(), 1u);
  EXPECT_EQ(watcher.posted[0], Kind::query);
  watcher.core.tick(watcher.begin + milliseconds(99));
  EXPECT_EQ(watcher.fault({1, 2}), "none");
  watcher.core.tick(watcher.begin + milliseconds(100));
  EXPECT_EQ(watcher.fault({1, 2}), "rank 2 was killed or ended early");
  EXPECT_EQ(watcher.fault({0, 1}), "none");
}

}  // namespace
}  // namespace esp::net
