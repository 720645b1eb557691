#include "esp/net/failure_detector_core.h"

#include <gtest/gtest.h>

namespace esp::net {
namespace {

using std::chrono::milliseconds;

class DetectorHarness {
 public:
  explicit DetectorHarness(int rank, int hub_rank = 0)
      : core(rank, hub_rank, milliseconds(250), peer_status, Log(LogLevel::error, rank),
             {[this](FrameKind kind, const std::string&) { posted.push_back(kind); },
              [](uint64_t) {
                return CallPosition{true, {}, false};
              },
              [](const PositionReport&) {}},
             begin) {}

  std::string fault(const std::vector<int>& members) const {
    try {
      peer_status->check(1, members);
    } catch (const CommError& error) {
      return error.what();
    }
    return "none";
  }

  const Clock::time_point begin{};
  std::shared_ptr<PeerStatus> peer_status = std::make_shared<PeerStatus>();
  std::vector<FrameKind> posted;
  FailureDetectorCore core;
};

// A wait checks PeerStatus whenever the epoch changes. With two separate changes (rank lost, then all groups failed) a
// wait could check between them. A group without the Hub's rank would then continue, although rank failures are no
// longer reported.
TEST(FailureDetectorCore, ClosedHubFailsAllGroupsAtOnce) {
  DetectorHarness detector(1);
  detector.core.on_hub_closed("closed its connection");
  EXPECT_EQ(detector.peer_status->epoch(), 1u);
  EXPECT_EQ(detector.fault({0, 1, 2}), "rank 0 closed its connection");
  EXPECT_EQ(detector.fault({1, 2}), "rank 0 closed its connection");
  detector.core.on_hub_closed("closed its connection");
  EXPECT_EQ(detector.peer_status->epoch(), 1u);
}

TEST(FailureDetectorCore, ClosedLauncherHubMarksNoRankLost) {
  DetectorHarness detector(1, -1);
  detector.core.on_hub_closed("closed its connection");
  EXPECT_FALSE(detector.peer_status->is_lost(0));
  EXPECT_EQ(detector.fault({0, 1}), "the launcher closed its connection");
}

TEST(FailureDetectorCore, DeclaresExitedPeerLostWhenHubDoesNotReply) {
  DetectorHarness detector(1);
  detector.core.on_local_peer_exit(2, detector.begin);
  ASSERT_EQ(detector.posted.size(), 1u);
  EXPECT_EQ(detector.posted[0], FrameKind::query_rank);
  detector.core.tick(detector.begin + milliseconds(99));
  EXPECT_EQ(detector.fault({1, 2}), "none");
  detector.core.tick(detector.begin + milliseconds(100));
  EXPECT_EQ(detector.fault({1, 2}), "rank 2 was killed or ended early");
  EXPECT_EQ(detector.fault({0, 1}), "none");
}

}  // namespace
}  // namespace esp::net
