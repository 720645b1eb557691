#include "esp/kernel/split_master.h"

#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <vector>

#include "esp/base/half.h"
#include "esp/kernel/elementwise.h"

namespace esp::kernel {
namespace {

// Splits numbers with these bits, joins them again, and returns the bits of the result.
std::vector<uint32_t> split_and_join(const std::vector<uint32_t>& bits, const device::Stream& stream) {
  const auto count = static_cast<int64_t>(bits.size());
  std::vector<float> x, back(bits.size());
  for (const uint32_t b : bits) x.push_back(std::bit_cast<float>(b));
  std::vector<uint16_t> high(bits.size()), low(bits.size());
  cast(high.data(), DType::bf16, x.data(), DType::f32, count, stream);
  split_master_weights(low.data(), x.data(), count, stream);
  join_master_weights(back.data(), high.data(), low.data(), count, stream);
  std::vector<uint32_t> again;
  for (const float b : back) again.push_back(std::bit_cast<uint32_t>(b));
  return again;
}

TEST(SplitMaster, SplitAndJoinRestoreAllFloatsExceptRoundingTies) {
  for (const int num_threads : {1, 3}) {
    device::ThreadPool threads(num_threads);
    const device::Stream stream{.device = {}, .pool = &threads, .queue = nullptr};
    // Every lower half, combined with upper halves that are even, odd, subnormal, ordinary, negative and very large.
    for (const uint32_t upper : {0x0000u, 0x0001u, 0x3f80u, 0x3f81u, 0xbf7fu, 0xc2ffu, 0x7f7fu}) {
      std::vector<uint32_t> bits;
      for (uint32_t lower = 0; lower < 0x10000; ++lower) bits.push_back(upper << 16 | lower);
      std::vector<uint32_t> expected = bits;
      expected[0x8000] += upper & 1 ? 1 : -1;
      EXPECT_EQ(split_and_join(bits, stream), expected) << std::hex << upper;
    }
  }
}

TEST(SplitMaster, SplitNumberRoundsToSameBf16) {
  std::vector<uint32_t> bits{0x3f808000, 0x3f818000, 0xbf808000, 0x00008000};
  for (size_t i = 0; const uint32_t back : split_and_join(bits, {})) {
    const float before = std::bit_cast<float>(bits[i++]), after = std::bit_cast<float>(back);
    uint16_t one = 0, other = 0;
    cast(&one, DType::bf16, &before, DType::f32, 1, {});
    cast(&other, DType::bf16, &after, DType::f32, 1, {});
    EXPECT_EQ(one, other);
  }
}

TEST(SplitMaster, ExactBf16HasZeroLowerHalf) {
  const std::vector<float> x{0, 1, -2.5f, 1e30f};
  std::vector<uint16_t> low(x.size(), 7);
  split_master_weights(low.data(), x.data(), 3, {});
  EXPECT_EQ(low, (std::vector<uint16_t>{0, 0, 0, 7}));
}

}  // namespace
}  // namespace esp::kernel
