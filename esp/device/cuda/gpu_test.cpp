// Tests of the GPU abstraction. On a machine without a GPU they are skipped with a message.
#include "esp/device/gpu.h"

#include <cstring>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/device/cuda/queue.h"

namespace esp::device {
namespace {

constexpr Device kGpu{DeviceKind::cuda, 0};

class Gpu : public testing::Test {
 protected:
  void SetUp() override {
    if (survey_gpus().gpus.empty()) GTEST_SKIP() << survey_gpus().problem;
  }
};

TEST(GpuSurvey, ReportsReasonWhenNoGpuIsUsable) {
  const GpuSurvey survey = survey_gpus();
  EXPECT_EQ(survey.gpus.empty(), !survey.problem.empty());
  if (survey.gpus.empty()) {
    EXPECT_THROW(require_gpu(kGpu), UsageError);
  }
}

TEST_F(Gpu, ErrorNamesMissingGpu) {
  try {
    require_gpu({DeviceKind::cuda, 99});
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("cuda:99"), std::string::npos) << error.what();
  }
}

TEST_F(Gpu, CountsAllocationsAndReturnsMemory) {
  MemoryAccount account;
  const auto source = gpu_memory(kGpu);
  MemoryPool pool(account, MemoryTier::device, *source);
  const uint64_t before = free_bytes(kGpu);
  MemoryPool::PoolBlock* block = pool.take(size_t{64} << 20, MemoryCategory::activation);
  EXPECT_EQ(account.use(MemoryCategory::activation, MemoryTier::device).current, uint64_t{64} << 20);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(block->data) % 512, 0u);
  EXPECT_FALSE(is_host_accessible(block->data));
  EXPECT_LE(free_bytes(kGpu), before - (uint64_t{64} << 20));
  pool.give(block);
  MemoryPool::PoolBlock* again = pool.take(size_t{32} << 20, MemoryCategory::buffer);
  EXPECT_EQ(again->data, block->data) << "the pool did not reuse the freed block";
  pool.give(again);
  pool.trim();
  EXPECT_EQ(pool.reserved_bytes(), 0u);
}

TEST_F(Gpu, ThrowsWhenAllocationExceedsBudget) {
  MemoryAccount account;
  account.set_budget(MemoryTier::device, 1 << 20);
  const auto source = gpu_memory(kGpu);
  MemoryPool pool(account, MemoryTier::device, *source);
  EXPECT_THROW(pool.take(2 << 20, MemoryCategory::parameter), DeviceError);
}

TEST_F(Gpu, OutOfMemoryErrorListsCategories) {
  MemoryAccount account;
  const auto source = gpu_memory(kGpu);
  MemoryPool pool(account, MemoryTier::device, *source);
  MemoryPool::PoolBlock* some = pool.take(1 << 20, MemoryCategory::gradient);
  try {
    pool.take(size_t{1} << 42, MemoryCategory::activation);
    FAIL();
  } catch (const DeviceError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("activation"), std::string::npos) << text;
    EXPECT_NE(text.find("gradient 1048576"), std::string::npos) << text;
    EXPECT_NE(text.find("bytes free"), std::string::npos) << text;
  }
  EXPECT_EQ(account.use(MemoryCategory::activation).current, 0u);
  pool.give(some);
}

// An array of integers on the host, and a GPU block of the same size.
struct Numbers {
  MemoryAccount account;
  std::unique_ptr<SegmentSource> source = gpu_memory(kGpu), pinned_source = pinned_memory(kGpu);
  MemoryPool pool{account, MemoryTier::device, *source}, pinned{account, MemoryTier::host, *pinned_source};
  GpuQueue queue{kGpu, &account};
  Stream stream = queue.stream();
  std::vector<int> host = std::vector<int>(100'003);
  MemoryPool::PoolBlock* there = pool.take(host.size() * sizeof(int), MemoryCategory::other);

  Numbers() { std::iota(host.begin(), host.end(), 7); }
  ~Numbers() { pool.give(there); }
  size_t bytes() const { return host.size() * sizeof(int); }
};

TEST_F(Gpu, CopiesInBothDirectionsAndOnDevice) {
  Numbers n;
  MemoryPool::PoolBlock* other = n.pool.take(n.bytes(), MemoryCategory::other);
  copy(n.there->data, n.host.data(), n.bytes(), n.stream);
  copy(other->data, n.there->data, n.bytes(), n.stream);
  std::vector<int> back(n.host.size());
  copy(back.data(), other->data, n.bytes(), n.stream);
  finish(n.stream);
  EXPECT_EQ(back, n.host);
  std::fill(back.begin(), back.end(), 0);
  transfer(back.data(), n.there->data, n.bytes());
  EXPECT_EQ(back, n.host);
  n.pool.give(other);
}

TEST_F(Gpu, PinnedMemoryIsHostReadable) {
  Numbers n;
  MemoryPool::PoolBlock* block = n.pinned.take(n.bytes(), MemoryCategory::buffer);
  EXPECT_TRUE(is_host_accessible(block->data));
  std::memcpy(block->data, n.host.data(), n.bytes());
  copy(n.there->data, block->data, n.bytes(), n.stream);
  std::vector<int> back(n.host.size());
  transfer(back.data(), n.there->data, n.bytes());
  EXPECT_EQ(back, n.host);
  EXPECT_EQ(n.account.use(MemoryCategory::buffer, MemoryTier::host).current, n.bytes());
  n.pinned.give(block);
}

TEST_F(Gpu, EventMakesOtherQueueWait) {
  Numbers n;
  GpuQueue second(kGpu);
  GpuEvent event(kGpu), begun(kGpu, true), ended(kGpu, true);
  begun.record(n.stream);
  for (int i = 0; i < 50; ++i) copy(n.there->data, n.host.data(), n.bytes(), n.stream);
  ended.record(n.stream);
  event.record(n.stream);
  event.make_wait(second.stream());
  std::vector<int> back(n.host.size());
  copy(back.data(), n.there->data, n.bytes(), second.stream());
  finish(second.stream());
  EXPECT_TRUE(event.passed());
  EXPECT_EQ(back, n.host);
  ended.finish();
  EXPECT_GT(ended.ms_since(begun), 0);
}

TEST_F(Gpu, GraphExecutesOnlyWhenReplayed) {
  Numbers n;
  MemoryPool::PoolBlock* other = n.pool.take(n.bytes(), MemoryCategory::other);
  copy(n.there->data, n.host.data(), n.bytes(), n.stream);
  ESP_CHECK(cudaMemsetAsync(other->data, 0, n.bytes(), handle_of(n.stream)) == cudaSuccess);
  finish(n.stream);
  GpuGraph graph;
  graph.begin(n.stream);
  EXPECT_TRUE(capturing(n.stream));
  copy(other->data, n.there->data, n.bytes(), n.stream);
  graph.end(n.stream);
  EXPECT_FALSE(capturing(n.stream));
  std::vector<int> back(n.host.size(), -1);
  transfer(back.data(), other->data, n.bytes());
  EXPECT_EQ(back[1], 0) << "the capture already executed the copy";
  graph.replay(n.stream);
  transfer(back.data(), other->data, n.bytes());
  EXPECT_EQ(back, n.host);
  n.pool.give(other);
}

TEST_F(Gpu, AllocatesDuringGraphCapture) {
  const GpuQueue queue(kGpu);
  const Stream stream = queue.stream();
  const auto source = gpu_memory(kGpu);
  std::byte* from = source->take(1 << 20);
  ASSERT_NE(from, nullptr);
  const std::vector<std::byte> values(1 << 20, std::byte{7});
  copy(from, values.data(), values.size(), stream);
  finish(stream);
  GpuGraph graph;
  graph.begin(stream);
  std::byte* late = source->take(1 << 20);
  ASSERT_NE(late, nullptr);
  copy(late, from, 1 << 20, stream);
  graph.end(stream);
  graph.replay(stream);
  std::vector<std::byte> got(1 << 20);
  copy(got.data(), late, got.size(), stream);
  finish(stream);
  EXPECT_EQ(got, values);
  source->give(late, 1 << 20);
  source->give(from, 1 << 20);
}

TEST_F(Gpu, ScratchGrowsOnlyWhenMoreIsRequested) {
  MemoryAccount account;
  GpuQueue queue(kGpu, &account);
  CudaQueue& own = queue_of(queue.stream());
  void* small = own.scratch(1 << 20);
  EXPECT_EQ(own.scratch(1 << 10), small);
  own.scratch(4 << 20);
  EXPECT_EQ(account.use(MemoryCategory::buffer, MemoryTier::device).current, uint64_t{4} << 20);
}

}  // namespace
}  // namespace esp::device
