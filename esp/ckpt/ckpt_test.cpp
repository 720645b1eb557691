#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>

#include "esp/base/error.h"
#include "esp/ckpt/checkpoint.h"
#include "esp/ckpt/manifest.h"
#include "esp/ckpt/safetensors.h"
#include "esp/obs/file.h"
#include "esp/obs/temporary_folder.h"

namespace esp::ckpt {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
constexpr auto kOther = device::MemoryCategory::other;

struct CheckpointTest : testing::Test {
  obs::TemporaryFolder folder;
  device::MemoryAccount account;
  device::MemoryPool pool{account};
  tensor::Context context{{}, &pool};

  tensor::Tensor iota(const tensor::Shape& shape, float from = 0) {
    tensor::Tensor x = tensor::empty(context, shape, DType::f32, kOther);
    std::iota(x.as<float>(), x.as<float>() + x.count(), from);
    return x;
  }
  Snapshot snapshot(int64_t step) {
    Snapshot s;
    s.step = step;
    s.model = {{"a", {4, 6}, {}, {}, 0, iota({4, 6})}, {"b", {3}, {}, {}, 0, iota({3}, 100)}};
    s.optimizer = {{"optimizer.m.a", {4, 6}, {}, {}, 0, iota({4, 6}, 50)}};
    s.state = {{"loss_scale", 4.0}};
    return s;
  }
  std::string dir() { return folder.path() + "/checkpoints"; }
};

TEST_F(CheckpointTest, ReadsBackSavedTensors) {
  const std::string path = save(dir(), snapshot(7));
  EXPECT_EQ(path, dir() + "/step-7");
  const auto checkpoint = open_checkpoint(path);
  EXPECT_EQ(checkpoint->step(), 7);
  EXPECT_EQ(checkpoint->state().at("loss_scale"), 4.0);
  EXPECT_EQ(checkpoint->shape_of("a").text(), "[4, 6]");
  TensorSlice slice{"a", {4, 6}, {}, {}, 0, tensor::zeros(context, {4, 6}, DType::f32, kOther)};
  checkpoint->read(slice);
  for (int i = 0; i < 24; ++i) EXPECT_EQ(slice.values.as<float>()[i], static_cast<float>(i));
}

TEST_F(CheckpointTest, ReadsSlicesOfAnotherLayout) {
  // The tensor is written as two column halves; the second half is written as two contiguous ranges. It is read as one
  // row, as two columns, and as one contiguous range.
  Snapshot s;
  const auto column = [&](int64_t first_col, int64_t begin, int64_t end) {
    tensor::Tensor x = tensor::empty(context, {end - begin}, DType::f32, kOther);
    for (int64_t at = begin; at < end; ++at)
      x.as<float>()[at - begin] = static_cast<float>(at / 3 * 6 + first_col + at % 3);
    return TensorSlice{"w", {4, 6}, {0, first_col}, {4, 3}, begin, x};
  };
  s.model = {column(0, 0, 12), column(3, 0, 5), column(3, 5, 12)};
  s.state = Json::object();
  const auto checkpoint = open_checkpoint(save(dir(), s));
  const auto expect = [&](const std::vector<int64_t>& begin, const std::vector<int64_t>& extent, int64_t first,
                          const std::vector<float>& values) {
    TensorSlice slice{"w",   {4, 6},
                      begin, extent,
                      first, tensor::empty(context, {static_cast<int64_t>(values.size())}, DType::f32, kOther)};
    checkpoint->read(slice);
    for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(slice.values.as<float>()[i], values[i]) << i;
  };
  expect({2, 0}, {1, 6}, 0, {12, 13, 14, 15, 16, 17});
  expect({0, 2}, {4, 2}, 0, {2, 3, 8, 9, 14, 15, 20, 21});
  expect({}, {}, 10, {10, 11, 12, 13});
}

// The values of an offloaded tensor are read in chunks, in order, each element once. This tensor is a little larger
// than one staging buffer.
TEST_F(CheckpointTest, WritesTheSameFileForOffloadedTensors) {
  constexpr int64_t kRows = 9, kColumns = (1 << 19) + 1;
  Snapshot here, beyond;
  here.model = {{"w", {kRows, kColumns}, {}, {}, 0, iota({kRows, kColumns})}, {"b", {3}, {}, {}, 0, iota({3}, 100)}};
  beyond.model = here.model;
  here.state = beyond.state = Json::object();
  std::vector<std::pair<int64_t, int64_t>> parts;
  beyond.model[0].values = tensor::Tensor::borrow(nullptr, {kRows, kColumns}, DType::f32);
  beyond.model[0].read = [&](int64_t first, const tensor::Tensor& to) {
    parts.emplace_back(first, to.count());
    std::copy_n(here.model[0].values.as<float>() + first, to.count(), to.as<float>());
  };
  const std::string one = save(folder.path() + "/here", here), other = save(folder.path() + "/beyond", beyond);
  const auto bytes = [](const std::string& path) {
    std::ifstream file(path + "/model-00001-of-00001.safetensors", std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  EXPECT_TRUE(bytes(one) == bytes(other));
  EXPECT_EQ(parts, (std::vector<std::pair<int64_t, int64_t>>{{0, 1 << 22}, {1 << 22, kRows * kColumns - (1 << 22)}}));
  EXPECT_NO_THROW(open_checkpoint(other));
}

TEST_F(CheckpointTest, ReadErrorNamesFirstMissingElement) {
  Snapshot s;
  s.model = {{"w", {8}, {}, {}, 0, iota({5})}};
  s.state = Json::object();
  const auto checkpoint = open_checkpoint(save(dir(), s));
  TensorSlice slice{"w", {8}, {}, {}, 0, tensor::zeros(context, {8}, DType::f32, kOther)};
  try {
    checkpoint->read(slice);
    FAIL();
  } catch (const IoError& error) {
    EXPECT_NE(std::string(error.what()).find("element 5 of tensor w"), std::string::npos) << error.what();
  }
}

TEST_F(CheckpointTest, KeepsNewestAndSkipsIncompleteCheckpoints) {
  for (int64_t step : {5, 10, 15, 20})
    save(dir(), snapshot(step), {.keep = 2, .shard_bytes = 1 << 20, .add_files = {}});
  EXPECT_FALSE(fs::exists(dir() + "/step-10"));
  EXPECT_TRUE(fs::exists(dir() + "/step-15"));
  fs::remove(dir() + "/step-20/manifest.json");
  std::vector<std::string> skipped;
  EXPECT_EQ(newest_complete(dir(), &skipped), dir() + "/step-15");
  EXPECT_EQ(skipped, std::vector<std::string>{dir() + "/step-20"});
  fs::resize_file(dir() + "/step-15/model-00001-of-00001.safetensors", 20);
  EXPECT_EQ(newest_complete(dir()), std::nullopt);
  EXPECT_EQ(newest_complete(folder.path() + "/nothing"), std::nullopt);
}

TEST_F(CheckpointTest, DetectsFlippedBitInATensor) {
  const std::string path = save(dir(), snapshot(1));
  const std::string file = path + "/model-00001-of-00001.safetensors";
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(-1, std::ios::end);
  const char last = static_cast<char>(stream.get());
  stream.seekp(-1, std::ios::end);
  stream.put(static_cast<char>(last ^ 1));
  stream.close();
  EXPECT_THROW(open_checkpoint(path), IoError);
}

TEST_F(CheckpointTest, SplitsLargeModelsIntoShards) {
  const std::string path = save(dir(), snapshot(1), {.keep = 0, .shard_bytes = 100, .add_files = {}});
  EXPECT_TRUE(fs::exists(path + "/model-00002-of-00002.safetensors"));
  // the values are read as f64; the stored tensor is f32
  TensorSlice slice{"b", {3}, {}, {}, 0, tensor::zeros(context, {3}, DType::f64, kOther)};
  open_checkpoint(path)->read(slice);
  EXPECT_EQ(slice.values.as<double>()[2], 102);
}

std::string file_bytes(const std::string& header, size_t data) {
  uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + std::string(data, 'x');
}

SafetensorsHeader parse(const std::string& bytes) {
  return parse_safetensors(std::as_bytes(std::span(bytes)), bytes.size(), "test");
}

// Links are never followed: removing old checkpoints could otherwise delete files outside the folder.
TEST_F(CheckpointTest, SkipsAndReportsSymbolicLinksAndTooLargeSteps) {
  const std::string path = save(dir(), snapshot(5), {.keep = 2, .shard_bytes = 1 << 20, .add_files = {}});
  fs::create_directory_symlink(path, dir() + "/step-7");
  fs::create_directories(dir() + "/step-100000000000000000000");
  fs::create_directories(dir() + "/step-of-mine");
  std::vector<std::string> skipped;
  EXPECT_EQ(newest_complete(dir(), &skipped), path);
  std::sort(skipped.begin(), skipped.end());
  EXPECT_THAT(skipped, testing::ElementsAre(HasSubstr("step-100000000000000000000 (got a step beyond"),
                                            HasSubstr("step-7 (got a symbolic link")));
  skipped.clear();
  ASSERT_TRUE(newest_valid(dir(), &skipped));
  EXPECT_EQ(skipped.size(), 2u);
}

TEST(Safetensors, ReadsEmptyAndScalarTensors) {
  const auto header = parse(file_bytes(
      R"({"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"e":{"dtype":"I8","shape":[0,5],"data_offsets":[4,4]}})",
      4));
  EXPECT_EQ(header.tensors.size(), 2u);
  EXPECT_EQ(header.tensors[0].count(), 1u);
}

TEST(Safetensors, RejectsInconsistentHeaders) {
  const char* wrong[] = {
      R"([1])",
      R"({"a":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}})",
      R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})",
      R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})",
      R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,4]}})",
      R"({"a":{"dtype":"I8","shape":[2],"data_offsets":[2,4]}})",
      R"({"a":{"dtype":"I8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"I8","shape":[4],"data_offsets":[0,4]}})",
      R"({"a":{"dtype":"I8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"I8","shape":[2],"data_offsets":[2,4]}})",
      R"({"a":{"dtype":"I8","shape":[8],"data_offsets":[0,8]}})",
      R"({"__metadata__":{"x":1}})",
  };
  for (const char* header : wrong) EXPECT_THROW(parse(file_bytes(header, 4)), IoError) << header;
  const auto message = [](const std::string& header) {
    try {
      parse(file_bytes(header, 4));
    } catch (const IoError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(message(R"({"a":{"dtype":"F32","shape":[1e20],"data_offsets":[0,4]}})"),
            "test: tensor a: shape: got 1e20; expected a list of at most 32 whole numbers");
  EXPECT_EQ(message(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})"),
            "test: tensor a: data_offsets: got more than two numbers; expected two whole numbers");
  EXPECT_EQ(message(R"({"a":{"dtype":"F32","shape":[1]}})"), "test: tensor a has no data_offsets");
  EXPECT_EQ(message(R"({"a":{"dtype":"I8","shape":[4],"data_offsets":[0,4]},"__metadata__":{"k":[1]}})"),
            "test: __metadata__.k: got a list or an object; expected a string");
  EXPECT_EQ(message(R"({"a":{"dtype":"I8","shape":[4],"data_offsets":[0,4],"note":{"x":[1,"y"]}}})"), "accepted");
  std::string cut = file_bytes("{}", 0);
  cut[7] = 0x7f;  // the header length becomes a huge number (exabytes)
  EXPECT_THROW(parse(cut), IoError);
  EXPECT_THROW(parse("abc"), IoError);
}

// With a linear search per name, this test would exceed its time limit by far.
TEST(Safetensors, WritesAndReadsAMillionTensors) {
  constexpr size_t kTensors = 1'000'000;
  const obs::TemporaryFolder folder;
  const uint8_t value = 7;
  std::vector<TensorSource> tensors;
  tensors.reserve(kTensors);
  for (size_t i = 0; i < kTensors; ++i) tensors.push_back({fmt::format("t{}", i), DType::u8, {1}, &value});
  write_safetensors(folder / "x", tensors);
  const SafetensorsFile file(folder / "x");
  EXPECT_EQ(file.tensors().size(), kTensors);
  ASSERT_TRUE(file.find("t999999"));
  EXPECT_EQ(file.bytes(*file.find("t999999"))[0], std::byte{7});
}

TEST(Safetensors, ThrowsWhenFileIsTruncatedAfterOpening) {
  const obs::TemporaryFolder folder;
  const std::string path = folder / "x";
  const std::vector<float> values(5000, 1);
  write_safetensors(path, {{{"first", DType::f32, {10}, values.data()}, {"last", DType::f32, {5000}, values.data()}}});
  const SafetensorsFile file(path);
  EXPECT_EQ(file.bytes(*file.find("last")).size(), 20000u);
  fs::resize_file(path, fs::file_size(path) - 4096);
  EXPECT_EQ(file.bytes(*file.find("first")).size(), 40u);
  for (const auto& read : std::initializer_list<std::function<void()>>{
           [&] { (void)file.bytes(*file.find("last")); }, [&] { (void)file.checksum(); },
           [&] { (void)file.checksum(*file.find("last")); }})
    try {
      read();
      ADD_FAILURE() << "read a truncated file";
    } catch (const IoError& error) {
      EXPECT_THAT(error.what(), HasSubstr(path + ": got "));
      EXPECT_THAT(error.what(), HasSubstr("The file was truncated while it was read"));
    }
}

TEST_F(CheckpointTest, ThrowsWhenFileIsTruncatedAfterOpening) {
  const std::string path = save(dir(), snapshot(1));
  const auto checkpoint = open_checkpoint(path);
  fs::resize_file(path + "/model-00001-of-00001.safetensors", 100);
  for (const DType dtype : {DType::f32, DType::f64}) {  // f32 is the stored type; f64 needs a cast
    const TensorSlice slice{"a", {4, 6}, {}, {}, 0, tensor::zeros(context, {4, 6}, dtype, kOther)};
    EXPECT_THROW(checkpoint->read(slice), IoError);
  }
}

TEST(ManifestTest, ErrorNamesInvalidStep) {
  for (const char* step : {"100000000000000000000", "-1", "1.5", "\"7\"", "9223372036854775807"}) try {
      parse_manifest(fmt::format(R"({{"format":"espalier","version":1,"step":{},"state":{{}},"files":{{}},)"
                                 R"("tensors":{{}}}})",
                                 step),
                     "m");
      ADD_FAILURE() << step;
    } catch (const IoError& error) {
      EXPECT_THAT(error.what(), HasSubstr("m: step: got "));
      EXPECT_THAT(error.what(), HasSubstr("expected an integer from 0 to 1000000000000000"));
    }
}

TEST(ManifestTest, RejectsPathsAndSlicesOutOfBounds) {
  const auto manifest = [](const std::string& file, const std::string& slice) {
    return fmt::format(
        R"({{"format":"espalier","version":1,"step":1,"state":{{}},"files":{{"{}":{{"bytes":1,"xxh3_128":"x"}}}},
      "tensors":{{"t":{{"dtype":"float32","shape":[4],"pieces":[{}]}}}}}})",
        file, slice);
  };
  EXPECT_NO_THROW(parse_manifest(manifest("f", R"({"file":"f","key":"t","first":0,"count":4})"), "m"));
  EXPECT_THROW(parse_manifest(manifest("../f", R"({"file":"../f","key":"t","first":0,"count":4})"), "m"), IoError);
  EXPECT_THROW(parse_manifest(manifest("f", R"({"file":"f","key":"t","first":2,"count":4})"), "m"), IoError);
  EXPECT_THROW(parse_manifest(manifest("f", R"({"file":"g","key":"t","first":0,"count":4})"), "m"), IoError);
  EXPECT_THROW(parse_manifest("{}", "m"), IoError);
}

}  // namespace
}  // namespace esp::ckpt
