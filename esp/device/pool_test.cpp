#include "esp/device/pool.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <utility>
#include <vector>

#include "esp/base/error.h"

namespace esp::device {
namespace {

constexpr auto kActivation = MemoryCategory::activation;

TEST(MemoryPool, CountsAllocatedBytesByCategory) {
  MemoryAccount account;
  MemoryPool pool(account);
  MemoryPool::PoolBlock* a = pool.take(100, kActivation);
  MemoryPool::PoolBlock* b = pool.take(28, MemoryCategory::gradient);
  EXPECT_EQ(account.use(kActivation).current, 100u);
  EXPECT_EQ(account.use(MemoryCategory::gradient).current, 28u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(b->data) % 64, 0u);
  pool.give(a);
  pool.give(b);
  EXPECT_EQ(account.use(kActivation).current, 0u);
  EXPECT_EQ(account.use(kActivation).peak, 100u);
  EXPECT_EQ(pool.allocated_bytes(), 0u);
}

// A segment source with 5 MiB in total. After that, take() returns null.
class SmallSource final : public SegmentSource {
 public:
  std::byte* take(size_t bytes) override {
    if (bytes > memory_.size() - used_) return nullptr;
    return memory_.data() + std::exchange(used_, used_ + bytes);
  }
  void give(std::byte*, size_t) noexcept override { ++num_given; }
  size_t grain() const override { return 4096; }
  std::string state() const override { return "the source is empty"; }
  int num_given = 0;

 private:
  std::vector<std::byte> memory_ = std::vector<std::byte>(size_t{5} << 20);
  size_t used_ = 0;
};

TEST(MemoryPool, AlignsBlocksToSourceGrainAndReturnsSegments) {
  MemoryAccount account;
  SmallSource source;
  {
    MemoryPool pool(account, MemoryTier::device, source);
    MemoryPool::PoolBlock* a = pool.take(1, kActivation);
    MemoryPool::PoolBlock* b = pool.take(1, kActivation);
    EXPECT_EQ(b->data - a->data, 4096);
    EXPECT_EQ(account.use(kActivation, MemoryTier::device).current, 2u);
    pool.give(a);
    pool.give(b);
  }
  EXPECT_EQ(source.num_given, 1);
}

TEST(MemoryPool, OutOfMemoryErrorListsCategories) {
  MemoryAccount account;
  SmallSource source;
  MemoryPool pool(account, MemoryTier::device, source);
  MemoryPool::PoolBlock* some = pool.take(1000, MemoryCategory::gradient);
  try {
    pool.take(size_t{8} << 20, kActivation);
    FAIL() << "the pool allocated more memory than the source has";
  } catch (const DeviceError& error) {
    for (const char* word : {"out of memory", "activation", "8388608", "gradient 1000", "the source is empty"})
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
  }
  EXPECT_THROW(pool.take(size_t{200} << 40, kActivation), DeviceError);
  EXPECT_EQ(account.use(kActivation).current, 0u);
  pool.give(some);
}

TEST(MemoryPool, RepeatedStepsReuseSameAddresses) {
  MemoryAccount account;
  MemoryPool pool(account);
  auto step = [&] {
    std::vector<MemoryPool::PoolBlock*> live;
    std::vector<std::byte*> addresses;
    std::mt19937 random(7);
    for (int i = 0; i < 500; ++i) {
      live.push_back(pool.take(1 + random() % 300'000, kActivation));
      addresses.push_back(live.back()->data);
      if (random() % 3 == 0) {
        size_t at = random() % live.size();
        pool.give(live[at]);
        live.erase(live.begin() + static_cast<long>(at));
      }
    }
    while (!live.empty()) {
      pool.give(live.back());
      live.pop_back();
    }
    return addresses;
  };
  step();
  const uint64_t reserved = pool.reserved_bytes();
  const auto second = step();
  EXPECT_EQ(pool.reserved_bytes(), reserved);
  EXPECT_EQ(step(), second);
  pool.trim();
  EXPECT_EQ(pool.reserved_bytes(), 0u);
}

TEST(MemoryPool, BlocksNeverOverlapAndMergeWhenFreed) {
  MemoryAccount account;
  MemoryPool pool(account);
  std::mt19937 random(3);
  std::map<std::byte*, MemoryPool::PoolBlock*> live;
  for (int i = 0; i < 20'000; ++i) {
    if (live.size() < 40 || random() % 2) {
      MemoryPool::PoolBlock* block = pool.take(random() % 50'000, kActivation);
      auto [at, inserted] = live.emplace(block->data, block);
      ASSERT_TRUE(inserted);
      if (auto next = std::next(at); next != live.end()) {
        ASSERT_LE(block->data + block->bytes, next->first);
      }
      if (at != live.begin()) {
        ASSERT_LE(std::prev(at)->first + std::prev(at)->second->bytes, block->data);
      }
    } else {
      auto victim = std::next(live.begin(), static_cast<long>(random() % live.size()));
      pool.give(victim->second);
      live.erase(victim);
    }
  }
  for (auto& [address, block] : live) pool.give(block);
  EXPECT_EQ(pool.allocated_bytes(), 0u);
  pool.trim();  // trim() frees a segment only if all its blocks have merged into one
  EXPECT_EQ(pool.reserved_bytes(), 0u);
}

TEST(MemoryPool, BudgetErrorLeavesBytesInUseUnchanged) {
  MemoryAccount account;
  account.set_budget(MemoryTier::device, 1000);
  MemoryPool pool(account);
  MemoryPool::PoolBlock* block = pool.take(900, kActivation);
  EXPECT_THROW(pool.take(200, kActivation), DeviceError);
  EXPECT_EQ(account.use(kActivation).current, 900u);
  pool.give(block);
}

}  // namespace
}  // namespace esp::device
