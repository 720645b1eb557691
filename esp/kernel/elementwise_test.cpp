#include "esp/kernel/elementwise.h"

#include <limits>

#include "esp/kernel/test_arrays.h"

namespace esp::kernel {
namespace {

constexpr int64_t kCounts[] = {0, 1, 15, 16, 100, 20011};

// Each expected value is computed in the accumulation type and rounded once, so the results must have exactly these
// bits.
TEST(Elementwise, AddScaleAndBiasRoundOnce) {
  const Threads pair(2);
  for_each_target([&](const std::string& target) {
    for (DType dtype : kFloating)
      for (int64_t count : kCounts) {
        const Array a = Array::random(count, dtype, 1), b = Array::random(count, dtype, 2);
        Array y(count, dtype), want = y, over = a, biased = a, bias_want = a;
        const int64_t cols = count % 5 == 0 && count ? count / 5 : count, rows = cols ? count / cols : 0;
        with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
          using A = Accumulator<T>;
          want.fill([&](int64_t i) { return static_cast<A>(a[i]) + static_cast<A>(b[i]); });
          bias_want.fill([&](int64_t i) { return static_cast<A>(a[i]) + static_cast<A>(b[i % cols]); });
        });
        const std::string where = fmt::format("{} {} of {}", target, name_of(dtype), count);
        add(y.data(), a.data(), b.data(), count, dtype, pair);
        EXPECT_TRUE(y.same_bits(want)) << where;
        add_to(over.data(), b.data(), count, dtype, pair);
        EXPECT_TRUE(over.same_bits(want)) << where;
        add_bias(biased.data(), b.data(), rows, cols, dtype, pair);
        EXPECT_TRUE(biased.same_bits(bias_want)) << where;
        scale(over.data(), 0.7, count, dtype, pair);
        with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
          using A = Accumulator<T>;
          want.fill([&](int64_t i) { return static_cast<A>(y[i]) * static_cast<A>(0.7); });
        });
        EXPECT_TRUE(over.same_bits(want)) << where;
      }
  });
}

TEST(Elementwise, CastRoundsToNearestBetweenAnyTwoTypes) {
  const Threads pair(2);
  for_each_target([&](const std::string& target) {
    for (DType from : kFloating)
      for (DType to : kFloating)
        for (int64_t count : kCounts) {
          Array x = Array::random(count, from, 1, 300), y(count, to), want = y;
          if (count > 3) {
            x.set(0, std::numeric_limits<double>::quiet_NaN());
            x.set(1, -std::numeric_limits<double>::infinity());
            x.set(2, 1e-40);  // a subnormal float
            x.set(3, 1e38);   // too large for f16
          }
          want.fill([&](int64_t i) { return x[i]; });
          cast(y.data(), to, x.data(), from, count, pair);
          ASSERT_TRUE(y.intact());
          for (int64_t i = 0; i < count; ++i)
            ASSERT_TRUE(y[i] == want[i] || (std::isnan(y[i]) && std::isnan(want[i])))
                << target << ' ' << name_of(from) << " to " << name_of(to) << ": " << x[i] << " became " << y[i];
        }
  });
}

TEST(Elementwise, FillWritesExactlyCountElements) {
  const Threads pair(2);
  for (DType dtype : kFloating) {
    Array y(20011, dtype);
    fill(y.data(), -2.5, 20011, dtype, pair);
    for (int64_t i = 0; i < 20011; ++i) ASSERT_EQ(y[i], -2.5);
    EXPECT_TRUE(y.intact());
  }
  std::vector<int32_t> whole(100);
  fill(whole.data(), -7, 100, DType::i32, pair);
  EXPECT_EQ(whole, std::vector<int32_t>(100, -7));
}

TEST(ColumnSums, AddRowsInOrderAndRoundOnce) {
  for_each_target([&](const std::string& target) {
    for (DType dtype : kFloating)
      for (int64_t rows : {1, 3, 4, 150})
        for (int64_t cols : {1, 20, 64, 600, 1300}) {
          const Array dy = Array::random(rows * cols, dtype, 1);
          Array sums = Array::random(cols, dtype, 2), want = sums, three = sums;
          with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
            want.fill([&](int64_t c) {
              auto total = static_cast<Accumulator<T>>(sums[c]);
              for (int64_t r = 0; r < rows; ++r) total += static_cast<Accumulator<T>>(dy[r * cols + c]);
              return total;
            });
          });
          add_column_sums(sums.data(), dy.data(), rows, cols, dtype, Threads(1));
          EXPECT_TRUE(sums.same_bits(want)) << target << ' ' << name_of(dtype) << ' ' << rows << 'x' << cols;
          add_column_sums(three.data(), dy.data(), rows, cols, dtype, Threads(3));
          EXPECT_TRUE(three.same_bits(want)) << target << ' ' << name_of(dtype) << ' ' << rows << 'x' << cols;
        }
  });
}

TEST(SumOfSquares, MatchesDotProductForAnyNumberOfThreads) {
  for_each_target([&](const std::string& target) {
    for (DType dtype : kFloating)
      for (int64_t count : {0, 1, 100, 4096, 4097, 50001}) {
        const Array x = Array::random(count, dtype, 1, 5);
        const double one = sum_of_squares(x.data(), count, dtype, Threads(1));
        EXPECT_NEAR(one, dot(x, x), 1e-12 * one) << target << ' ' << name_of(dtype) << ' ' << count;
        EXPECT_EQ(one, sum_of_squares(x.data(), count, dtype, Threads(3)));
      }
  });
}

// The buffer has more blocks than the array of block sums holds, so the kernel fills that array several times.
TEST(SumOfSquares, AddsBlocksInOrderForLongBuffers) {
  constexpr int64_t kCount = 3 * 4096 * 2048 + 77;
  std::vector<float> x(kCount);
  for (int64_t i = 0; i < kCount; ++i) x[static_cast<size_t>(i)] = static_cast<float>(i % 1009) * 1e-3f;
  const double one = sum_of_squares(x.data(), kCount, DType::f32, Threads(1));
  EXPECT_EQ(one, sum_of_squares(x.data(), kCount, DType::f32, Threads(2)));
  double blocks = 0;
  for (int64_t first = 0; first < kCount; first += 4096)
    blocks +=
        sum_of_squares(&x[static_cast<size_t>(first)], std::min<int64_t>(4096, kCount - first), DType::f32, Threads(1));
  EXPECT_EQ(one, blocks);
}

TEST(SumOfSquares, LargeFloatsDoNotOverflowAndNonFinitePropagates) {
  const Threads alone(1);
  Array x(10, DType::f32);
  x.set(3, 1e30);
  EXPECT_NEAR(sum_of_squares(x.data(), 10, DType::f32, alone), 1e60, 1e53);
  for (double bad : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    x.set(5, bad);
    EXPECT_FALSE(std::isfinite(sum_of_squares(x.data(), 10, DType::f32, alone)));
  }
}

TEST(AllFinite, DetectsNonFiniteValueAtAnyIndex) {
  const Threads pair(2);
  for_each_target([&](const std::string& target) {
    for (DType dtype : kFloating)
      for (int64_t count : {1, 31, 64, 5000, 20011}) {
        Array x = Array::random(count, dtype, 1);
        // The largest values of each type are still finite
        x.set(0, dtype == DType::f64 ? 1e308 : dtype == DType::f16 ? -65504 : -3.3e38);
        EXPECT_TRUE(all_finite(x.data(), count, dtype, pair)) << target << ' ' << name_of(dtype) << ' ' << count;
        for (double bad : {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
                           std::numeric_limits<double>::quiet_NaN()})
          for (int64_t i : {int64_t{0}, count / 2, count - 1}) {
            Array spoilt = x;
            spoilt.set(i, bad);
            EXPECT_FALSE(all_finite(spoilt.data(), count, dtype, pair)) << target << ' ' << name_of(dtype) << ' ' << i;
          }
      }
    EXPECT_TRUE(all_finite(nullptr, 0, DType::f32, pair));
  });
}

TEST(Sum, AddsInOrderInDouble) {
  const Threads alone(1);
  const std::vector<float> x = {1e8f, 1, -1e8f, 0.5f};
  EXPECT_EQ(sum(x.data(), 4, DType::f32, alone), 1.5);
  EXPECT_EQ(sum(x.data(), 4, DType::bf16, alone), 1.5);  // values of a bf16 model are float
  const std::vector<double> y = {0.25, 2};
  EXPECT_EQ(sum(y.data(), 2, DType::f64, alone), 2.25);
}

TEST(Sum, WritesTotalToGivenPointer) {
  const Threads alone(1);
  const std::vector<float> x = {3, 4, -2};
  double total = -1, squares = -1;
  sum_to(&total, x.data(), 3, DType::f32, alone);
  sum_of_squares_to(&squares, x.data(), 3, DType::f32, alone);
  EXPECT_EQ(total, 5);
  EXPECT_EQ(squares, 29);
}

TEST(IntegerKernels, IotaCountsUpAndShiftAddsConstant) {
  const Threads alone(1);
  std::vector<int32_t> x(5, -7);
  iota(x.data(), 40, 4, alone);
  EXPECT_EQ(x, (std::vector<int32_t>{40, 41, 42, 43, -7}));
  shift(x.data(), x.data(), -41, 4, alone);
  EXPECT_EQ(x, (std::vector<int32_t>{-1, 0, 1, 2, -7}));
}

TEST(CastRows, CopiesBetweenMatricesWithDifferentStrides) {
  const Threads pair(2);
  const int64_t rows = 300, width = 37, from_stride = 40, to_stride = 53;
  const Array x = Array::random(rows * from_stride, DType::f32, 1);
  for (DType to : {DType::f32, DType::bf16}) {
    Array y(rows * to_stride, to), want = y;
    y.fill([](int64_t) { return 9.0; });
    want.fill([&](int64_t i) { return i % to_stride < width ? x[i / to_stride * from_stride + i % to_stride] : 9.0; });
    cast_rows(y.data(), to, to_stride, x.data(), DType::f32, from_stride, rows, width, pair);
    EXPECT_TRUE(y.same_bits(want)) << name_of(to);
  }
}

TEST(Transpose, SwapsRowsAndColumnsOfEveryBatch) {
  const Threads pair(2);
  for (DType dtype : kFloating)
    for (auto [batch, rows, cols] : {std::array<int64_t, 3>{1, 1, 1}, {2, 3, 50}, {3, 64, 64}, {1, 130, 37}}) {
      const Array x = Array::random(batch * rows * cols, dtype, 1);
      Array y(batch * rows * cols, dtype);
      transpose(y.data(), x.data(), batch, rows, cols, dtype, pair);
      for (int64_t b = 0; b < batch; ++b)
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t c = 0; c < cols; ++c) ASSERT_EQ(y[(b * cols + c) * rows + r], x[(b * rows + r) * cols + c]);
      EXPECT_TRUE(y.intact());
    }
}

}  // namespace
}  // namespace esp::kernel
