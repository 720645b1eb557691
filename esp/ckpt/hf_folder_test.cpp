#include "esp/ckpt/hf_folder.h"

#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "esp/base/error.h"
#include "esp/obs/file.h"
#include "esp/obs/temporary_folder.h"

namespace esp::ckpt {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

template <typename F>
std::string refusal(F&& f) {
  try {
    f();
  } catch (const IoError& error) {
    return error.what();
  }
  return "accepted";
}

DeferredTensor numbers(const std::string& name, float first, int64_t count) {
  return {name, DType::f32, {count}, [=](std::byte* to) {
            for (int64_t i = 0; i < count; ++i) {
              const float value = first + static_cast<float>(i);
              std::memcpy(to + i * 4, &value, 4);
            }
          }};
}

float value_at(const HfFolder::TensorRef& found, size_t at) {
  float value;
  std::memcpy(&value, found.bytes().data() + at * 4, 4);
  return value;
}

struct HfFolderTest : testing::Test {
  obs::TemporaryFolder folder;
  void write(uint64_t shard_bytes) {
    const std::vector<DeferredTensor> tensors = {numbers("a", 0, 10), numbers("b", 10, 10), numbers("c", 20, 10)};
    write_hf_tensors(folder.path(), tensors, shard_bytes);
  }
};

TEST_F(HfFolderTest, WritesOneFileWhenAllTensorsFit) {
  write(1000);
  EXPECT_TRUE(std::filesystem::exists(folder / "model.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(folder / "model.safetensors.index.json"));
  HfFolder read(folder.path());
  EXPECT_EQ(value_at(read.take("c"), 9), 29);
  EXPECT_THAT(read.unused_names(), ElementsAre("a", "b"));
  EXPECT_EQ(SafetensorsFile(folder / "model.safetensors").metadata().at("format"), "pt");
}

TEST_F(HfFolderTest, WritesShardsAndIndexWhenTooLarge) {
  write(80);
  const WeightIndex index =
      parse_weight_index(obs::read_whole_file(folder / "model.safetensors.index.json", 1 << 20), "index");
  EXPECT_EQ(index.total_size, 120u);
  EXPECT_EQ(index.file_of.at("b"), "model-00001-of-00002.safetensors");
  EXPECT_EQ(index.file_of.at("c"), "model-00002-of-00002.safetensors");
  HfFolder read(folder.path());
  EXPECT_THAT(read.names(), ElementsAre("a", "b", "c"));
  EXPECT_EQ(value_at(read.take("b"), 3), 13);
  EXPECT_EQ(value_at(read.take("c"), 0), 20);
}

TEST_F(HfFolderTest, ErrorNamesMissingTensorAndMostSimilarName) {
  write(1000);
  HfFolder read(folder.path());
  read.rename([](const std::string& name) { return "model.layers." + name; });
  EXPECT_THAT(refusal([&] { read.take("model.layer.a"); }),
              testing::AllOf(HasSubstr("no tensor model.layer.a"), HasSubstr("model.layers.a")));
  EXPECT_EQ(value_at(read.take("model.layers.a"), 1), 1);
}

TEST_F(HfFolderTest, RejectsARenamingThatGivesTwoTensorsTheSameName) {
  write(1000);
  HfFolder read(folder.path());
  EXPECT_THAT(refusal([&] { read.rename([](const std::string&) { return "x"; }); }),
              HasSubstr("under two names, a and b"));
}

TEST_F(HfFolderTest, ErrorNamesMissingFiles) {
  EXPECT_THAT(refusal([&] { HfFolder(folder.path()); }), HasSubstr("without model.safetensors and without"));
  obs::write_whole_file(folder / "pytorch_model.bin", "x");
  EXPECT_THAT(refusal([&] { HfFolder(folder.path()); }), HasSubstr("safe_serialization"));
  write(80);
  std::filesystem::remove(folder / "model-00002-of-00002.safetensors");
  EXPECT_THAT(refusal([&] { HfFolder(folder.path()); }), HasSubstr("model-00002-of-00002.safetensors"));
  std::filesystem::rename(folder / "model-00001-of-00002.safetensors", folder / "model-00002-of-00002.safetensors");
  EXPECT_NE(refusal([&] { HfFolder(folder.path()); }), "accepted");
}

TEST_F(HfFolderTest, RejectsPipesAndGitLfsPointers) {
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n";
  obs::write_whole_file(folder / "config.json", pointer);
  EXPECT_THAT(refusal([&] { obs::read_whole_file(folder / "config.json", 1000); }), HasSubstr("got a Git LFS pointer"));
  obs::write_whole_file(folder / "model.safetensors", pointer);
  EXPECT_THAT(refusal([&] { HfFolder(folder.path()); }), HasSubstr("model.safetensors: got a Git LFS pointer"));
  for (const char* name : {"model.safetensors", "config.json"}) {
    std::filesystem::remove(folder / name);
    ASSERT_EQ(mkfifo((folder / name).c_str(), 0600), 0);
  }
  EXPECT_THAT(refusal([&] { HfFolder(folder.path()); }), HasSubstr("model.safetensors: got a pipe"));
  EXPECT_THAT(refusal([&] { obs::read_whole_file(folder / "config.json", 1000); }),
              HasSubstr("config.json: got a pipe"));
}

TEST(WeightIndexTest, RejectsPathsOutsideFolder) {
  EXPECT_THAT(refusal([] { parse_weight_index("[]", "i"); }), HasSubstr("weight_map"));
  for (const char* file : {"../x", "/etc/passwd", "", ".hidden", "a/b"})
    EXPECT_THAT(refusal([&] { parse_weight_index("{\"weight_map\":{\"t\":\"" + std::string(file) + "\"}}", "i"); }),
                HasSubstr("expected a plain file name"))
        << file;
  EXPECT_THAT(refusal([] { parse_weight_index(R"({"weight_map":{"t":7}})", "i"); }),
              HasSubstr("expected a plain file name"));
  EXPECT_THAT(refusal([] { parse_weight_index(R"({"metadata":{"total_size":-1},"weight_map":{}})", "i"); }),
              HasSubstr("total_size"));
  EXPECT_EQ(parse_weight_index(R"({"metadata":{"total_size":12.0},"weight_map":{}})", "i").total_size, 12u);
}

}  // namespace
}  // namespace esp::ckpt
