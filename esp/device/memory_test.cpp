#include "esp/device/memory.h"

#include <cstdint>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/device/device.h"

namespace esp::device {
namespace {

TEST(Device, NamesRoundTripAndInvalidNamesThrow) {
  for (const char* name : {"cpu", "cuda:0", "cuda:3"}) EXPECT_EQ(name_of(parse_device(name)), name);
  EXPECT_EQ(parse_device("cuda"), (Device{DeviceKind::cuda, 0}));
  for (const char* name : {"gpu", "cuda:", "cuda:x", "cuda:-1", "cpu:1", ""})
    EXPECT_THROW(parse_device(name), UsageError) << name;
}

TEST(MemoryAccount, TracksCurrentAndPeakByCategoryAndTier) {
  MemoryAccount account;
  {
    HostBuffer weights(account, 1000, {.category = MemoryCategory::parameter});
    HostBuffer more(account, 500, {.category = MemoryCategory::parameter, .tier = MemoryTier::device});
    HostBuffer gradients(account, 300, {.category = MemoryCategory::gradient});
    EXPECT_EQ(account.use(MemoryCategory::parameter).current, 1500u);
    EXPECT_EQ(account.use(MemoryCategory::parameter, MemoryTier::device).current, 500u);
    EXPECT_EQ(account.use(MemoryTier::host).current, 1300u);
  }
  EXPECT_EQ(account.use(MemoryCategory::parameter).current, 0u);
  EXPECT_EQ(account.use(MemoryCategory::parameter).peak, 1500u);
  EXPECT_EQ(account.use(MemoryTier::host).peak, 1300u);
  EXPECT_EQ(account.snapshot()["gradient"].dump(), R"({"current":0,"peak":300})");
  EXPECT_EQ(account.snapshot().size(), 6u);
  account.reset_peaks();
  EXPECT_EQ(account.use(MemoryCategory::parameter).peak, 0u);
}

TEST(MemoryAccount, TierPeakIsMaximumOfSumOverCategories) {
  MemoryAccount account;
  { HostBuffer first(account, 100, {.category = MemoryCategory::parameter}); }
  { HostBuffer second(account, 60, {.category = MemoryCategory::gradient}); }
  EXPECT_EQ(account.use(MemoryTier::host).peak, 100u);
}

TEST(MemoryAccount, BudgetErrorNamesCategoryAndBytes) {
  MemoryAccount account;
  account.set_budget(MemoryTier::host, 1000);
  HostBuffer fits(account, 900, {.category = MemoryCategory::optimizer});
  try {
    HostBuffer too_much(account, 200, {.category = MemoryCategory::activation});
    FAIL() << "1100 bytes were allocated with a budget of 1000";
  } catch (const DeviceError& error) {
    EXPECT_STREQ(error.what(),
                 "activation memory on tier host: over budget: 200 bytes requested, 900 in use, budget 1000");
  }
  HostBuffer exact_fit(account, 100);
  HostBuffer elsewhere(account, 5000, {.tier = MemoryTier::device});
  EXPECT_EQ(account.use(MemoryTier::host).current, 1000u);
}

TEST(HostBuffer, AllocatesAlignedMemoryAndZeroesItOnRequest) {
  MemoryAccount account;
  for (size_t bytes : {size_t{1}, size_t{63}, size_t{64}, size_t{100'000}, size_t{5} << 20})
    for (bool huge : {false, true}) {
      HostBuffer buffer(account, bytes, {.huge_pages = huge, .zero = true});
      ASSERT_EQ(buffer.bytes(), bytes);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u);
      for (size_t i = 0; i < bytes; i += 61) ASSERT_EQ(buffer.data()[i], std::byte{0});
      buffer.data()[bytes - 1] = std::byte{1};
    }
  EXPECT_EQ(account.use(MemoryTier::host).current, 0u);
}

TEST(HostBuffer, MoveTransfersMemoryAndEmptyBufferUsesNoMemory) {
  MemoryAccount account;
  HostBuffer a(account, 100), empty(account, 0);
  EXPECT_EQ(empty.data(), nullptr);
  HostBuffer b = std::move(a);
  EXPECT_EQ(a.data(), nullptr);
  EXPECT_EQ(account.use(MemoryTier::host).current, 100u);
  b = HostBuffer(account, 40);
  EXPECT_EQ(account.use(MemoryTier::host).current, 40u);
}

TEST(HostBuffer, FailedAllocationThrowsAndIsNotCounted) {
  MemoryAccount account;
  EXPECT_THROW(HostBuffer(account, SIZE_MAX - 10), DeviceError);
  EXPECT_EQ(account.use(MemoryTier::host).current, 0u);
}

TEST(MemoryAccount, ReturnsToZeroAfterConcurrentThreads) {
  MemoryAccount account;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&account] {
      for (size_t i = 1; i < 500; ++i) HostBuffer buffer(account, i, {.category = MemoryCategory::activation});
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(account.use(MemoryCategory::activation).current, 0u);
  EXPECT_GE(account.use(MemoryCategory::activation).peak, 499u);
}

}  // namespace
}  // namespace esp::device
