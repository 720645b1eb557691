#include "esp/launch/memory_folder.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>

#include <gtest/gtest.h>

namespace esp::launch {
namespace {

namespace fs = std::filesystem;

class MemoryFolderTest : public testing::Test {
 protected:
  MemoryFolderTest() {
    std::string pattern = (fs::temp_directory_path() / "espalier-folders-XXXXXX").string();
    under_ = ::mkdtemp(pattern.data());
  }
  ~MemoryFolderTest() override { fs::remove_all(under_); }
  // Creates a folder in a child process that ends without removing it, like a killed owner. Returns its path.
  std::string left_behind() const {
    const pid_t child = ::fork();
    if (child == 0) {
      auto* folder = new MemoryFolder(under_);
      std::ofstream(folder->path() + "/step-1") << "state";
      ::_exit(0);
    }
    ::waitpid(child, nullptr, 0);
    return fs::directory_iterator(under_)->path().string();
  }
  std::string under_;
};

TEST_F(MemoryFolderTest, CreatesPrivateFolderAndDestructorRemovesIt) {
  std::optional<MemoryFolder> folder(under_);
  const std::string path = folder->path();
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0700u);
  std::ofstream(path + "/file") << "text";
  folder.reset();
  EXPECT_FALSE(fs::exists(path));
}

TEST_F(MemoryFolderTest, RemovesFoldersOfAKilledOwner) {
  const std::string left = left_behind();
  ASSERT_TRUE(fs::exists(left + "/step-1"));
  const MemoryFolder next(under_);
  EXPECT_FALSE(fs::exists(left));
  EXPECT_TRUE(fs::exists(next.path()));
}

TEST_F(MemoryFolderTest, KeepsFoldersOfALiveOwner) {
  const MemoryFolder one(under_), other(under_);
  EXPECT_NE(one.path(), other.path());
  EXPECT_EQ(sweep_memory_folders(under_), 0);
  EXPECT_TRUE(fs::exists(one.path()));
}

TEST_F(MemoryFolderTest, DoesNotFollowSymbolicLinks) {
  const std::string precious = under_ + "/precious";
  fs::create_directory(precious);
  std::ofstream(precious + "/file") << "text";
  fs::create_directory_symlink(precious, under_ + "/espalier-snapshots-abcdef");
  EXPECT_EQ(sweep_memory_folders(under_), 0);
  EXPECT_TRUE(fs::exists(precious + "/file"));
}

}  // namespace
}  // namespace esp::launch
