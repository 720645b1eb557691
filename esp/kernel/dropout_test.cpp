#include "esp/kernel/dropout.h"

#include <limits>

#include "esp/kernel/test_arrays.h"

namespace esp::kernel {
namespace {

constexpr DropoutKey kKey{0x1234567887654321u, 0xfedcba9800000003u};

TEST(Dropout, MatchesRefBitForBit) {
  const Threads pair(2);
  for_each_target([&](const std::string& target) {
    for (DType dtype : kFloating)
      for (int64_t rows : {1, 5, 31})
        for (int64_t cols : {1, 6, 63, 1029})
          for (bool with_residual : {false, true})
            for (double rate : {0.0, 0.1, 0.75}) {
              const DropoutShape shape{.rows = rows, .cols = cols, .first_row = 3, .rate = rate};
              const Array x = Array::random(rows * cols, dtype, 1), other = Array::random(rows * cols, dtype, 2);
              const void* residual = with_residual ? other.data() : nullptr;
              Array y(rows * cols, dtype), want = y;
              dropout(y.data(), x.data(), residual, shape, kKey, dtype, pair);
              ref::dropout(want.data(), x.data(), residual, shape, kKey, dtype);
              EXPECT_TRUE(y.same_bits(want)) << target << ' ' << name_of(dtype) << ' ' << rows << 'x' << cols;
            }
  });
}

TEST(Dropout, SliceUsesSameMaskAsFullTensor) {
  const Threads pair(2);
  constexpr int64_t kRows = 37, kCols = 90, kFirstRow = 11, kFirstCol = 29, kSomeRows = 13, kSomeCols = 41;
  const Array x = Array::random(kRows * kCols, DType::f32, 1);
  Array whole(kRows * kCols, DType::f32);
  dropout(whole.data(), x.data(), nullptr, {.rows = kRows, .cols = kCols, .rate = 0.3}, kKey, DType::f32, pair);
  Array piece(kSomeRows * kSomeCols, DType::f32), result = piece;
  auto in_whole = [](int64_t i) { return (kFirstRow + i / kSomeCols) * kCols + kFirstCol + i % kSomeCols; };
  piece.fill([&](int64_t i) { return x[in_whole(i)]; });
  const DropoutShape shape{.rows = kSomeRows,
                           .cols = kSomeCols,
                           .first_row = kFirstRow,
                           .first_col = kFirstCol,
                           .row_stride = kCols,
                           .rate = 0.3};
  dropout(result.data(), piece.data(), nullptr, shape, kKey, DType::f32, pair);
  for (int64_t i = 0; i < result.count(); ++i) ASSERT_EQ(result[i], whole[in_whole(i)]) << i;
}

TEST(Dropout, KeepsExpectedFractionAndMean) {
  const Threads pair(2);
  constexpr int64_t kCount = 1 << 20;
  Array x(kCount, DType::f32), y = x;
  x.fill([](int64_t) { return 1.0; });
  for (double rate : {0.1, 0.5, 0.9}) {
    dropout(y.data(), x.data(), nullptr, {.rows = 1, .cols = kCount, .rate = rate}, kKey, DType::f32, pair);
    double kept = 0, total = 0;
    for (int64_t i = 0; i < kCount; ++i) {
      kept += y[i] != 0;
      total += y[i];
    }
    const double deviation = std::sqrt(rate * (1 - rate) / kCount);  // standard deviation of the kept fraction
    EXPECT_NEAR(kept / kCount, 1 - rate, 5 * deviation);
    EXPECT_NEAR(total / kCount, 1, 5 * deviation / (1 - rate));
  }
}

TEST(Dropout, MasksOfDifferentKeysAndOfNeighboursAreUncorrelated) {
  const Threads pair(2);
  constexpr int64_t kCount = 1 << 18;
  Array ones(kCount, DType::f32), a = ones, b = ones, c = ones;
  ones.fill([](int64_t) { return 1.0; });
  const DropoutShape shape{.rows = 1, .cols = kCount, .rate = 0.5};
  dropout(a.data(), ones.data(), nullptr, shape, {1, 1}, DType::f32, pair);
  dropout(b.data(), ones.data(), nullptr, shape, {1, 2}, DType::f32, pair);
  dropout(c.data(), ones.data(), nullptr, shape, {2, 1}, DType::f32, pair);
  double ab = 0, ac = 0, shifted = 0;
  for (int64_t i = 0; i + 1 < kCount; ++i) {
    ab += (a[i] - 1) * (b[i] - 1);  // elements are 0 or 2, so each factor is ±1
    ac += (a[i] - 1) * (c[i] - 1);
    shifted += (a[i] - 1) * (a[i + 1] - 1);
  }
  const double deviation = 1 / std::sqrt(static_cast<double>(kCount));
  EXPECT_NEAR(ab / kCount, 0, 5 * deviation);
  EXPECT_NEAR(ac / kCount, 0, 5 * deviation);
  EXPECT_NEAR(shifted / kCount, 0, 5 * deviation);
}

TEST(Dropout, MatchesRefWhenCounterExceeds32Bits) {
  const Threads alone(1);
  constexpr int64_t kCols = 100;
  // The Philox counters of this range (global index / 4) pass 2^32.
  const DropoutShape shape{
      .rows = 1, .cols = kCols, .first_col = (int64_t{1} << 34) - 50, .row_stride = kCols + 1, .rate = 0.5};
  const Array x = Array::random(kCols, DType::f32, 1);
  Array y(kCols, DType::f32), want = y;
  dropout(y.data(), x.data(), nullptr, shape, kKey, DType::f32, alone);
  ref::dropout(want.data(), x.data(), nullptr, shape, kKey, DType::f32);
  EXPECT_TRUE(y.same_bits(want));
}

TEST(Dropout, MayOverwriteInputOrResidual) {
  const Threads pair(2);
  const DropoutShape shape{.rows = 9, .cols = 77, .rate = 0.4};
  Array x = Array::random(9 * 77, DType::bf16, 1), residual = Array::random(9 * 77, DType::bf16, 2),
        y(9 * 77, DType::bf16);
  dropout(y.data(), x.data(), residual.data(), shape, kKey, DType::bf16, pair);
  Array over = residual;
  dropout(over.data(), x.data(), over.data(), shape, kKey, DType::bf16, pair);
  EXPECT_TRUE(over.same_bits(y));
  over = x;
  dropout(over.data(), over.data(), residual.data(), shape, kKey, DType::bf16, pair);
  EXPECT_TRUE(over.same_bits(y));
}

TEST(Dropout, DroppedNaNBecomesZero) {
  const Threads alone(1);
  Array x(1000, DType::f32);
  x.fill([](int64_t) { return std::numeric_limits<double>::quiet_NaN(); });
  dropout(x.data(), x.data(), nullptr, {.rows = 1, .cols = 1000, .rate = 0.5}, kKey, DType::f32, alone);
  int zeros = 0;
  for (int64_t i = 0; i < 1000; ++i) zeros += x[i] == 0;
  EXPECT_GT(zeros, 400);
  EXPECT_LT(zeros, 600);
}

}  // namespace
}  // namespace esp::kernel
