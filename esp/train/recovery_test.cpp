#include "esp/train/recovery.h"

#include <fstream>
#include <numeric>

#include <gtest/gtest.h>

#include "esp/base/error.h"
#include "esp/obs/temporary_folder.h"

namespace esp::train {
namespace {

struct ResumePointTest : testing::Test {
  obs::TemporaryFolder folder;
  device::MemoryAccount account;
  device::MemoryPool pool{account};
  const std::string snapshots = folder.path() + "/snapshots", checkpoints = folder.path() + "/checkpoints";
  std::vector<std::string> skipped;

  std::string save(const std::string& dir, int64_t step) {
    tensor::Tensor x = tensor::empty({{}, &pool}, {8}, DType::f32, device::MemoryCategory::other);
    std::iota(x.as<float>(), x.as<float>() + 8, static_cast<float>(step));
    ckpt::Snapshot snapshot;
    snapshot.step = step;
    snapshot.state = {{"step", step}};
    snapshot.model = {{"a", {8}, {}, {}, 0, x}};
    return ckpt::save(dir, snapshot);
  }
  static void damage(const std::string& path) {
    std::fstream file(path + "/model-00001-of-00001.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-3, std::ios::end);
    file.put('\x55');
  }
  std::string newest() {
    const auto origin = find_resume_point(snapshots, checkpoints, skipped);
    return origin ? (origin->snapshot ? "snapshot " : "disk ") + std::to_string(origin->found.checkpoint->step()) : "";
  }
};

TEST_F(ResumePointTest, PrefersNewestStepThenSnapshotOverDiskCheckpoint) {
  EXPECT_EQ(newest(), "");
  save(checkpoints, 10);
  EXPECT_EQ(newest(), "disk 10");
  save(snapshots, 8);
  EXPECT_EQ(newest(), "disk 10");
  save(snapshots, 10);
  EXPECT_EQ(newest(), "snapshot 10");
  save(snapshots, 12);
  EXPECT_EQ(newest(), "snapshot 12");
}

TEST_F(ResumePointTest, SkipsDamagedCheckpoints) {
  save(checkpoints, 10);
  save(snapshots, 11);
  damage(save(snapshots, 12));
  EXPECT_EQ(newest(), "snapshot 11");
  EXPECT_FALSE(skipped.empty());
  damage(snapshots + "/step-11");
  EXPECT_EQ(newest(), "disk 10");
  damage(checkpoints + "/step-10");
  EXPECT_THROW(newest(), IoError);
}

TEST(PeerLoss, DistinguishesPeerLossFromPermanentErrors) {
  bool lost = false;
  RecoveryOptions recovery;
  recovery.peer_lost = [&] { return lost; };
  EXPECT_TRUE(is_peer_loss(CommError(CommError::Kind::lost, 3, "gone"), recovery));
  EXPECT_FALSE(is_peer_loss(UsageError("wrong"), recovery));
  EXPECT_FALSE(is_peer_loss(IoError("disk full"), recovery));
  lost = true;  // then the IoError below is a consequence of the lost rank
  EXPECT_TRUE(is_peer_loss(IoError("another rank was lost"), recovery));
  EXPECT_STREQ(peer_loss_error(recovery).what(), "another rank was lost");
  recovery.peer_loss = [] { return CommError(CommError::Kind::lost, 2, "rank 2 was killed"); };
  EXPECT_STREQ(peer_loss_error(recovery).what(), "rank 2 was killed");
  EXPECT_EQ(peer_loss_error(recovery).peer(), 2);
  EXPECT_FALSE(is_memory_trusted(CommError(CommError::Kind::corrupt, 1, "replicas differ")));
  EXPECT_TRUE(is_memory_trusted(CommError(CommError::Kind::lost, 1, "gone")));
}

}  // namespace
}  // namespace esp::train
