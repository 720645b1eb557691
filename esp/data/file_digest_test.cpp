#include "esp/data/file_digest.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "esp/base/error.h"
#include "esp/obs/file.h"
#include "esp/obs/temporary_folder.h"

namespace esp::data {
namespace {

class FileDigestTest : public testing::Test {
 protected:
  FileDigest digest(const std::string& name) const {
    const std::string path = folder_ / name;
    return digest_files({&path, 1})[0];
  }
  void change(const std::string& name, uint64_t at) const {
    std::fstream file(folder_ / name, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(at));
    file.put('x');
  }

  obs::TemporaryFolder folder_;
};

TEST_F(FileDigestTest, ChangesWithAnyByteOfSmallFile) {
  obs::write_whole_file(folder_ / "text", std::string(200'000, 'a'));
  const FileDigest before = digest("text");
  EXPECT_EQ(before.bytes, 200'000u);
  for (const uint64_t at : {0, 65'535, 65'536, 131'072, 199'999}) {
    obs::write_whole_file(folder_ / "text", std::string(200'000, 'a'));
    EXPECT_EQ(digest("text").hash, before.hash);
    change("text", at);
    EXPECT_NE(digest("text").hash, before.hash) << at;
  }
}

TEST_F(FileDigestTest, DependsOnContentOnly) {
  obs::write_whole_file(folder_ / "one", "the same");
  obs::write_whole_file(folder_ / "two", "the same");
  std::filesystem::last_write_time(folder_ / "two", std::filesystem::file_time_type::min());
  EXPECT_EQ(digest("one").hash, digest("two").hash);
}

TEST_F(FileDigestTest, SamplesWholeRangeOfLargeFile) {
  const uint64_t bytes = 4 * kDigestBytes + 12'345;
  obs::write_whole_file(folder_ / "large", "");
  std::filesystem::resize_file(folder_ / "large", bytes);
  FileDigest before = digest("large");
  for (const uint64_t at : {uint64_t{0}, uint64_t{65'535}, bytes - 65'536, bytes - 1}) {
    change("large", at);
    const FileDigest now = digest("large");
    EXPECT_NE(now.hash, before.hash) << at;
    before = now;
  }
}

TEST_F(FileDigestTest, ErrorNamesUnreadableFile) {
  EXPECT_THROW(digest("none"), IoError);
}

}  // namespace
}  // namespace esp::data
