// Damaged checkpoints: every flipped bit is detected, the message names the file, and the checkpoint is skipped. Only
// regular files are opened.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/base/rng.h"
#include "esp/ckpt/checkpoint.h"
#include "esp/ckpt/manifest.h"
#include "esp/ckpt/regular_file.h"
#include "esp/ckpt/steps.h"
#include "esp/obs/file.h"
#include "esp/obs/temporary_folder.h"

namespace esp::ckpt {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

void flip(const std::string& path, uint64_t at, int bit) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(at));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(at));
  file.put(static_cast<char>(byte ^ (1 << bit)));
}

struct NewestValidTest : testing::Test {
  obs::TemporaryFolder folder;
  device::MemoryAccount account;
  device::MemoryPool pool{account};
  tensor::Context context{{}, &pool};
  const std::string dir = folder / "run/checkpoints";

  std::string saved(int64_t step) {
    Snapshot snapshot;
    snapshot.step = step;
    for (const char* name : {"first", "second"})
      snapshot.model.push_back(
          {name, {5, 3}, {}, {}, 0, tensor::zeros(context, {5, 3}, DType::f32, device::MemoryCategory::other)});
    snapshot.state = {{"loss_scale", 4.0}};
    SaveOptions options;
    options.add_files = [](const std::string& where) { obs::write_whole_file(where + "/tokenizer.json", "{}\n"); };
    return save(dir, snapshot, options);
  }
  std::string refusal() {
    try {
      newest_valid(dir);
    } catch (const IoError& error) {
      return error.what();
    }
    return {};
  }
};

TEST_F(NewestValidTest, UsesPreviousCheckpointWhenBitIsFlipped) {
  const std::string before = saved(1), path = saved(2);
  for (const auto& entry : fs::directory_iterator(path)) {
    const std::string file = entry.path();
    const uint64_t bytes = fs::file_size(file);
    for (uint64_t i = 0; i < 40; ++i) {
      const uint64_t at = random_bits(1, i, 0) % bytes;
      const int bit = static_cast<int>(random_bits(1, i, 1) % 8);
      flip(file, at, bit);
      std::vector<std::string> skipped;
      const auto found = newest_valid(dir, &skipped);
      ASSERT_TRUE(found) << file;
      EXPECT_EQ(found->path, before) << "bit " << bit << " of byte " << at << " of " << file;
      ASSERT_EQ(skipped.size(), 1u);
      EXPECT_THAT(skipped[0], HasSubstr(file));
      flip(file, at, bit);
    }
  }
  EXPECT_EQ(newest_valid(dir)->path, path);
}

TEST_F(NewestValidTest, ErrorNamesDamagedTensor) {
  const std::string file = saved(1) + "/model-00001-of-00001.safetensors";
  flip(file, fs::file_size(file) - 1, 3);  // flips a bit in the last byte of the last tensor
  EXPECT_THAT(refusal(), HasSubstr("damaged in second:"));
  EXPECT_THAT(refusal(), HasSubstr("--resume none"));
  flip(file, fs::file_size(file) - 1, 3);
  flip(file, fs::file_size(file) - 61, 0);
  EXPECT_THAT(refusal(), HasSubstr("damaged in first:"));
}

TEST_F(NewestValidTest, SkipsCheckpointWithoutManifest) {
  fs::remove(saved(1) + "/manifest.json");
  std::vector<std::string> skipped;
  EXPECT_FALSE(newest_valid(dir, &skipped));
  EXPECT_THAT(skipped, testing::ElementsAre(HasSubstr("incomplete")));
}

TEST_F(NewestValidTest, RequiresChecksumExceptInVersionOneManifest) {
  Manifest manifest;
  manifest.state = Json::object();
  std::string text = to_json(manifest);
  EXPECT_EQ(parse_manifest(text, "m").step, 0);
  Json json = Json::parse(text);
  json.erase("checksum");
  EXPECT_THROW(parse_manifest(json.dump(), "m"), IoError);
  json["version"] = 1;
  EXPECT_EQ(parse_manifest(json.dump(), "m").step, 0);
}

TEST_F(NewestValidTest, RejectsFilesThatAreNotRegular) {
  const std::string pipe = folder / "pipe", link = folder / "link", file = folder / "file";
  obs::write_whole_file(file, "words");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  fs::create_symlink(file, link);
  EXPECT_EQ(read_regular_file(file, 100), "words");
  EXPECT_THROW(read_regular_file(file, 4), IoError);
  for (const std::string& path : {pipe, link, folder.path(), std::string("/dev/zero")}) {
    EXPECT_THROW(read_regular_file(path, 100), IoError) << path;
    EXPECT_EQ(regular_file_size(path), std::nullopt) << path;
  }
}

TEST_F(NewestValidTest, FindsCheckpointRenamedAsideBeforePowerFailure) {
  const std::string path = saved(3);
  fs::rename(path, dir + "/.aside-step-3");
  EXPECT_EQ(newest_valid(dir)->checkpoint->step(), 3);
  saved(4);
  EXPECT_TRUE(fs::exists(path + "/manifest.json"));
  EXPECT_FALSE(fs::exists(dir + "/.aside-step-3"));
}

TEST_F(NewestValidTest, MakeFoldersAppliesModeOnlyToInnermostFolder) {
  make_folders(folder / "a/b/c", 0700);
  EXPECT_EQ(fs::status(folder / "a/b/c").permissions(), fs::perms::owner_all);
  EXPECT_NE(fs::status(folder / "a/b").permissions(), fs::perms::owner_all);
  make_folders(folder / "a/b/c");
  EXPECT_EQ(fs::status(folder / "a/b/c").permissions(), fs::perms::owner_all);
  obs::write_whole_file(folder / "file", "");
  EXPECT_THROW(make_folders(folder / "file"), IoError);
  EXPECT_THROW(make_folders(folder / "file/below"), IoError);
}

}  // namespace
}  // namespace esp::ckpt
