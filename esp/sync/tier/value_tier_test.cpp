// Tests both value tiers (reads return the written weights, for any ranges) and the tiered gather.
#include "esp/sync/tier/value_tier.h"

#include <gtest/gtest.h>

#include <numeric>

#include "esp/base/error.h"
#include "esp/obs/temporary_folder.h"
#include "esp/sync/testing.h"
#include "esp/sync/tier/tiered_gather.h"

namespace esp::sync {
namespace {

const std::vector<int64_t> kCounts = {5, 0, 3000, 1024, 1};

struct TierFixture {
  explicit TierFixture(const char* placement, const std::vector<int64_t>& counts = kCounts) {
    FileOptions options;
    options.folder = folder.path();
    values = make_value_tier(placement, {counts, DType::f32, &host}, options);
  }
  // Writes 1000·u + i + change to element i of unit u, `chunk` elements at a time.
  void fill(float change, int64_t chunk) {
    for (size_t unit = 0; unit < kCounts.size(); ++unit) {
      std::vector<float> all(static_cast<size_t>(kCounts[unit]));
      std::iota(all.begin(), all.end(), static_cast<float>(1000 * unit) + change);
      for (int64_t first = 0; first < kCounts[unit] || first == 0; first += chunk)
        values->write(unit, first,
                      std::as_bytes(std::span(all).subspan(
                          static_cast<size_t>(first), static_cast<size_t>(std::min(chunk, kCounts[unit] - first)))));
    }
    values->flush();
  }
  void expect(float change) {
    for (size_t unit = 0; unit < kCounts.size(); ++unit) {
      const auto* at = reinterpret_cast<const float*>(values->fetch(unit));
      for (int64_t i = 0; i < kCounts[unit]; ++i)
        ASSERT_EQ(at[i], static_cast<float>(1000 * unit) + change + static_cast<float>(i)) << unit << " " << i;
      values->release(unit);
    }
  }

  obs::TemporaryFolder folder;
  device::MemoryAccount account;
  device::MemoryPool host{account, device::MemoryTier::host};
  std::unique_ptr<ValueTier> values;
};

class ValueTiers : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Placements, ValueTiers, testing::Values("host", "file"),
                         [](const auto& row) { return std::string(row.param); });

TEST_P(ValueTiers, ReturnWrittenWeights) {
  TierFixture fixture(GetParam());
  for (const int64_t chunk : {int64_t{1} << 20, int64_t{1000}, int64_t{7}}) {
    fixture.fill(static_cast<float>(chunk % 100), chunk);
    fixture.expect(static_cast<float>(chunk % 100));
    fixture.expect(static_cast<float>(chunk % 100));
  }
}

TEST_P(ValueTiers, DiscardPrefetchedShardsAfterAWrite) {
  TierFixture fixture(GetParam());
  fixture.fill(0, 100);
  fixture.values->prefetch(2);  // reads ahead a shard that the test then overwrites
  fixture.values->flush();
  fixture.fill(0.5F, 100);
  fixture.expect(0.5F);
}

TEST_P(ValueTiers, ReportShapeAndTypeOfEveryShard) {
  TierFixture fixture(GetParam());
  for (size_t unit = 0; unit < kCounts.size(); ++unit) {
    const tensor::Tensor shard = fixture.values->shard(unit);
    EXPECT_EQ(shard.count(), kCounts[unit]);
    EXPECT_EQ(shard.dtype(), DType::f32);
  }
  EXPECT_EQ(fixture.account.use(device::MemoryTier::device).peak, 0u);
}

TEST(FileValues, CountFileTraffic) {
  TierFixture fixture("file");
  fixture.fill(0, 100);
  fixture.expect(0);
  uint64_t bytes = 0;
  for (const int64_t count : kCounts) bytes += static_cast<uint64_t>(count) * 4;
  const FileTraffic traffic = fixture.values->traffic();
  EXPECT_EQ(traffic.written, bytes);
  EXPECT_EQ(traffic.read, bytes);
  EXPECT_EQ((traffic.read + traffic.padding_read) % kBlockBytes, 0u);
  // Host memory may hold only the shards in flight.
  EXPECT_LE(fixture.account.use(device::MemoryTier::host).peak, 4 * (12288u + kBlockBytes));
}

TEST(FileValues, RejectADiskThatIsTooSmall) {
  try {
    TierFixture fixture("file", {int64_t{1} << 50});
    FAIL();
  } catch (const IoError& error) {
    EXPECT_NE(std::string(error.what()).find("sync.offload_params"), std::string::npos) << error.what();
  }
}

// A gather uploads its shard once, with or without a hint, and again after the weights have changed.
TEST_P(ValueTiers, UploadAShardOncePerGather) {
  for (const int size : {1, 2})
    with_ranks(size, [&](comm::Communicator* comm) {
      TierFixture fixture(GetParam());
      device::MemoryPool pool(fixture.account);
      device::ThreadPool threads(1);
      const tensor::Context context{{{}, &threads, nullptr}, &pool};
      device::HostLink link;
      TimedCommunicator ranks(comm, {});
      TieredGather gather(ranks, context, *fixture.values, link, kCounts.size(), std::chrono::seconds(30));
      uint64_t expected = 0;
      for (const float change : {0.0F, 0.5F}) {
        fixture.fill(change, 100);
        for (const bool hinted : {false, true}) {
          if (hinted) {
            gather.hint(2, 2);
            gather.hint(2, 1);
          }
          const tensor::Tensor whole =
              tensor::empty(context, {kCounts[2] * size}, DType::f32, device::MemoryCategory::buffer);
          gather.start(2, whole);
          gather.finish(2, whole);
          expected += static_cast<uint64_t>(kCounts[2]) * 4;
          EXPECT_EQ(link.bytes_up(), expected);
          for (int64_t i = 0; i < whole.count(); ++i)
            ASSERT_EQ(whole.as<float>()[i], 2000 + change + static_cast<float>(i % kCounts[2]));
        }
        gather.hint(3, 1);  // the hinted shard is prefetched and then becomes stale
        gather.values_changed();
        if (size > 1) expected += static_cast<uint64_t>(kCounts[3]) * 4;
        EXPECT_EQ(fixture.account.use(device::MemoryTier::device).current, 0u);
      }
    });
}

// A value tier whose reads block until the test releases them.
class SlowValues final : public ValueTier {
 public:
  explicit SlowValues(device::MemoryPool& host)
      : shard_(host, {4}, DType::f32, device::MemoryCategory::parameter), reads_allowed_(Work::pending()) {
    std::fill_n(shard_.as<float>(), 4, 7.0F);
  }
  tensor::Tensor shard(size_t) const override { return shard_; }
  const std::byte* fetch(size_t) override {
    reads_allowed_.wait(Deadline::after(std::chrono::seconds(30)));
    return shard_.as<std::byte>();
  }
  void write(size_t, int64_t, std::span<const std::byte>) override {}
  void allow_reads() { reads_allowed_.complete(); }

 private:
  tensor::Tensor shard_;
  Work reads_allowed_;
};

// The computing thread releases the read later: if it waited for the read, it would block until the timeout.
TEST(TieredGather, DoesNotBlockTheComputingThread) {
  for (const int size : {1, 2})
    with_ranks(size, [&](comm::Communicator* comm) {
      device::MemoryAccount account;
      device::MemoryPool host(account, device::MemoryTier::host), pool(account);
      const tensor::Context context{{}, &pool};
      SlowValues values(host);
      device::HostLink link;
      TimedCommunicator ranks(comm, {});
      TieredGather gather(ranks, context, values, link, 2, std::chrono::seconds(30));
      const tensor::Tensor whole = tensor::empty(context, {4 * size}, DType::f32, device::MemoryCategory::buffer);
      gather.hint(1, 2);
      gather.hint(0, 1);
      if (size == 1) gather.start(0, whole);
      EXPECT_EQ(link.bytes_up(), 0u);
      values.allow_reads();
      if (size > 1) gather.start(0, whole);
      gather.finish(0, whole);
      for (int i = 0; i < 4 * size; ++i) EXPECT_EQ(whole.as<float>()[i], 7);
      EXPECT_EQ(link.bytes_up(), 16u);
      EXPECT_GT(gather.fetch_ms(0), 0);
    });
}

TEST(FileValues, PrefetchReadsAShardOnce) {
  TierFixture fixture("file");
  fixture.fill(0, 100);
  const uint64_t before = fixture.values->traffic().read;
  fixture.values->prefetch(2);
  fixture.values->prefetch(2);
  fixture.values->flush();  // discards the shard that was read ahead
  EXPECT_EQ(fixture.values->traffic().read - before, 3000u * 4);
}

}  // namespace
}  // namespace esp::sync
