#include "esp/train/run_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "esp/obs/temporary_folder.h"

namespace esp::train {
namespace {

namespace fs = std::filesystem;

std::string complaint(const FolderHandle& folder) {
  try {
    folder.check();
  } catch (const obs::FileChanged& error) {
    return error.what();
  }
  return "none";
}

TEST(FolderHandle, DetectsDeletionAndReplacement) {
  const obs::TemporaryFolder folder;
  fs::create_directory(folder / "run");
  const FolderHandle handle(folder / "run");
  EXPECT_EQ(complaint(handle), "none");
  fs::remove_all(folder / "run");
  EXPECT_THAT(complaint(handle), testing::HasSubstr("was deleted or moved during the run. The run"));
  fs::create_directory(folder / "run");
  EXPECT_THAT(complaint(handle), testing::HasSubstr("another folder has its name now"));
}

TEST(RunLock, DestructorKeepsLockFileOfNextRun) {
  const obs::TemporaryFolder folder;
  fs::create_directory(folder / "run");
  auto first = std::make_unique<RunLock>(folder / "run", Log(LogLevel::off, -1));
  fs::remove_all(folder / "run");
  fs::create_directory(folder / "run");
  const RunLock second(folder / "run", Log(LogLevel::off, -1));
  first.reset();
  EXPECT_TRUE(fs::exists(folder / "run/run.lock"));
}

}  // namespace
}  // namespace esp::train
