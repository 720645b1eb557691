#include "esp/train/recover.h"

#include <fstream>
#include <numeric>

#include <gtest/gtest.h>

#include "esp/base/error.h"
#include "esp/obs/temporary_folder.h"

namespace esp::train {
namespace {

struct Ladder : testing::Test {
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
    const auto origin = newest_origin(snapshots, checkpoints, skipped);
    return origin ? (origin->snapshot ? "snapshot " : "disk ") + std::to_string(origin->found.checkpoint->step()) : "";
  }
};

TEST_F(Ladder, TakesTheNewestOfBothAndASnapshotOfTheSameStep) {
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

TEST_F(Ladder, PassesOverWhatIsDamaged) {
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

TEST(Losses, AreToldFromWhatWouldHappenAgain) {
  bool lost = false;
  Recovery recovery;
  recovery.peer_lost = [&] { return lost; };
  EXPECT_TRUE(tells_of_loss(CommError(CommError::Kind::lost, 3, "gone"), recovery));
  EXPECT_FALSE(tells_of_loss(UsageError("wrong"), recovery));
  EXPECT_FALSE(tells_of_loss(IoError("disk full"), recovery));
  lost = true;  // then the file is one that the dead rank did not write
  EXPECT_TRUE(tells_of_loss(IoError("another rank was lost"), recovery));
  EXPECT_STREQ(loss_told(recovery).what(), "another rank was lost");
  recovery.loss = [] { return CommError(CommError::Kind::lost, 2, "rank 2 was killed"); };
  EXPECT_STREQ(loss_told(recovery).what(), "rank 2 was killed");
  EXPECT_EQ(loss_told(recovery).peer(), 2);
  EXPECT_FALSE(memory_is_good(CommError(CommError::Kind::corrupt, 1, "copies differ")));
  EXPECT_TRUE(memory_is_good(CommError(CommError::Kind::lost, 1, "gone")));
}

}  // namespace
}  // namespace esp::train
