// Compares elementwise GPU kernels with the CPU kernels, for sizes with and without an incomplete last pack, and for
// aligned and misaligned addresses.
#include "esp/kernel/elementwise.h"

#include "esp/kernel/cuda/device_scalars.h"
#include "esp/kernel/cuda/test_gpu.h"
#include "esp/kernel/difference.h"
#include "esp/kernel/softmax.h"
#include "esp/kernel/weighted_sum.h"

namespace esp::kernel {
namespace {

const device::Stream kCpu;
constexpr int64_t kCounts[] = {1, 7, 64, 1000, 4099, 70000};

class ElementwiseOnGpu : public GpuTest {};

TEST_F(ElementwiseOnGpu, FillAddAndScaleMatchCpu) {
  for (DType dtype : kFloating)
    for (int64_t count : kCounts)
      for (int64_t shift : {0, 1}) {
        const std::string where = fmt::format("{} {} {}", name_of(dtype), count, shift);
        Array a = Array::random(count, dtype, 1), b = Array::random(count, dtype, 2), want(count, dtype);
        GpuArray x(*this, a, shift), y(*this, b, shift), z(*this, want, shift);
        fill(z, 0.375, count, dtype, stream);
        fill(want.data(), 0.375, count, dtype, kCpu);
        EXPECT_TRUE(z.fetch().same_bits(want)) << "fill " << where;
        add(z, x, y, count, dtype, stream);
        add(want.data(), a.data(), b.data(), count, dtype, kCpu);
        EXPECT_TRUE(z.fetch().same_bits(want)) << "add " << where;
        add_to(z, x, count, dtype, stream);
        add_to(want.data(), a.data(), count, dtype, kCpu);
        EXPECT_TRUE(z.fetch().same_bits(want)) << "add_to " << where;
        scale(z, -1.7, count, dtype, stream);
        scale(want.data(), -1.7, count, dtype, kCpu);
        EXPECT_TRUE(z.fetch().same_bits(want)) << "scale " << where;
      }
}

TEST_F(ElementwiseOnGpu, CastsBetweenAllTypesMatchCpu) {
  for (DType from : kFloating)
    for (DType to : kFloating)
      for (int64_t count : {1000, 4099}) {
        Array x = Array::random(count, from, 3, 100), want(count, to);
        GpuArray a(*this, x), y(*this, want);
        cast(y, to, a, from, count, stream);
        cast(want.data(), to, x.data(), from, count, kCpu);
        EXPECT_TRUE(y.fetch().same_bits(want)) << name_of(from) << " to " << name_of(to);
      }
}

TEST_F(ElementwiseOnGpu, BiasAdditionAndColumnSumsMatchCpu) {
  for (DType dtype : kFloating)
    for (auto [rows, cols] : {std::pair<int64_t, int64_t>{1, 1}, {3, 77}, {300, 64}, {2000, 768}, {1111, 1030}}) {
      const std::string where = fmt::format("{} {}x{}", name_of(dtype), rows, cols);
      Array y = Array::random(rows * cols, dtype, 4), bias = Array::random(cols, dtype, 5), sums = bias;
      GpuArray on_y(*this, y), on_bias(*this, bias), on_sums(*this, sums);
      add_column_sums(on_sums, on_y, rows, cols, dtype, stream);
      Array want = sums;
      for (int64_t c = 0; c < cols; ++c) {
        double total = sums[c];
        for (int64_t r = 0; r < rows; ++r) total += y[r * cols + c];
        want.set(c, total);
      }
      expect_close(on_sums.fetch(), want, rounding(dtype), "column sums " + where);
      add_bias(on_y, on_bias, rows, cols, dtype, stream);
      add_bias(y.data(), bias.data(), rows, cols, dtype, kCpu);
      EXPECT_TRUE(on_y.fetch().same_bits(y)) << "bias " << where;
    }
}

TEST_F(ElementwiseOnGpu, TransposeMatchesRef) {
  for (DType dtype : kFloating)
    for (auto [batch, rows, cols] :
         {std::tuple<int64_t, int64_t, int64_t>{1, 1, 5}, {3, 33, 65}, {2, 128, 100}, {3, 136, 72}, {1, 256, 200}}) {
      Array x = Array::random(batch * rows * cols, dtype, 6), want(batch * rows * cols, dtype);
      GpuArray a(*this, x), y(*this, want);
      transpose(y, a, batch, rows, cols, dtype, stream);
      transpose(want.data(), x.data(), batch, rows, cols, dtype, kCpu);
      EXPECT_TRUE(y.fetch().same_bits(want)) << name_of(dtype);
    }
}

TEST_F(ElementwiseOnGpu, SumsMatchCpuAndAreDeterministic) {
  for (DType dtype : kFloating)
    for (int64_t count : {1, 999, 16384, 100003})
      for (int64_t shift : {0, 1}) {
        Array x = Array::random(count, dtype, 7);
        GpuArray a(*this, x, shift);
        const double want = sum_of_squares(x.data(), count, dtype, kCpu);
        const double got = sum_of_squares(a, count, dtype, stream);
        EXPECT_NEAR(got, want, 1e-6 * want) << name_of(dtype) << count;
        EXPECT_EQ(got, sum_of_squares(a, count, dtype, stream)) << "the sum is not deterministic";
        GpuVector<double> total(*this, {5.0});
        cuda::sum_of_squares_to(total, true, a, count, dtype, stream);
        double result = 0;
        EXPECT_TRUE(total.copy.fetch(&result));
        EXPECT_EQ(result, 5.0 + got);
        EXPECT_TRUE(all_finite(a, count, dtype, stream));
        x.set(count / 2, std::numeric_limits<double>::quiet_NaN());
        GpuArray bad(*this, x, shift);
        EXPECT_FALSE(all_finite(bad, count, dtype, stream)) << name_of(dtype);
        EXPECT_FALSE(std::isfinite(sum_of_squares(bad, count, dtype, stream)));
        if (dtype == DType::f32 || dtype == DType::f64) {
          const Array y = Array::random(count, dtype, 8);
          GpuArray b(*this, y, shift);
          EXPECT_NEAR(sum(b, count, dtype, stream), sum(y.data(), count, dtype, kCpu), 1e-9 * count);
        }
      }
}

TEST_F(ElementwiseOnGpu, RandomFillsMatchCpuBitForBit) {
  for (DType dtype : kFloating)
    for (int64_t first : {0, 1, 6, 1000003}) {
      const int64_t count = 10007;
      Array want(count, dtype);
      GpuArray x(*this, want);
      fill_normal(x, 0.1, 0.02, 12, 34, first, count, dtype, stream);
      fill_normal(want.data(), 0.1, 0.02, 12, 34, first, count, dtype, kCpu);
      EXPECT_TRUE(x.fetch().same_bits(want)) << "normal " << name_of(dtype) << first;
      fill_uniform(x, -3, 2, 12, 34, first, count, dtype, stream);
      fill_uniform(want.data(), -3, 2, 12, 34, first, count, dtype, kCpu);
      EXPECT_TRUE(x.fetch().same_bits(want)) << "uniform " << name_of(dtype) << first;
    }
}

TEST_F(ElementwiseOnGpu, WeightedSumMatchesRef) {
  for (DType dtype : kFloating)
    for (int num_terms : {1, 2, 5, 8}) {
      const int64_t count = 4099;
      std::vector<Array> x;
      std::vector<std::unique_ptr<GpuArray>> on;
      std::vector<WeightedTerm> terms, on_terms;
      for (int t = 0; t < num_terms; ++t) x.push_back(Array::random(count, dtype, 20 + static_cast<uint64_t>(t)));
      for (int t = 0; t < num_terms; ++t) {
        on.push_back(std::make_unique<GpuArray>(*this, x[static_cast<size_t>(t)]));
        terms.push_back({x[static_cast<size_t>(t)].data(), 0.3 + t});
        on_terms.push_back({*on.back(), 0.3 + t});
      }
      Array want(count, dtype);
      GpuArray y(*this, want);
      weighted_sum(y, on_terms, count, dtype, stream);
      ref::weighted_sum(want.data(), terms, count, dtype);
      expect_near(y.fetch(), want, 4, 10, fmt::format("{} {}", name_of(dtype), num_terms));
    }
}

TEST_F(ElementwiseOnGpu, SubtractMultiplyAndMaskMatchCpu) {
  for (DType dtype : {DType::f32, DType::f64}) {
    const int64_t count = 4099;
    Array a = Array::random(count, dtype, 30), b = Array::random(count, dtype, 31), want(count, dtype);
    GpuArray x(*this, a), y(*this, b), z(*this, want);
    subtract(z, x, y, count, dtype, stream);
    subtract(want.data(), a.data(), b.data(), count, dtype, kCpu);
    EXPECT_TRUE(z.fetch().same_bits(want));
    multiply(z, x, count, dtype, stream);
    multiply(want.data(), a.data(), count, dtype, kCpu);
    EXPECT_TRUE(z.fetch().same_bits(want));
    for (WriteMode into : {WriteMode::add, WriteMode::subtract, WriteMode::overwrite}) {
      write_values(z, into, x, count, dtype, stream);
      write_values(want.data(), into, a.data(), count, dtype, kCpu);
      EXPECT_TRUE(z.fetch().same_bits(want));
    }
  }
  for (DType dtype : kFloating) {
    const int64_t count = 4099;
    Array a = Array::random(count, dtype, 32), want(count, dtype);
    for (int64_t i = 0; i < count; i += 3) a.set(i, 0);
    std::vector<uint8_t> mask(count, 9), expected(count);
    GpuArray x(*this, a), y(*this, want);
    GpuVector<uint8_t> on_mask(*this, mask);
    nonzero_mask(on_mask, x, count, dtype, stream);
    ref::nonzero_mask(expected.data(), a.data(), count, dtype);
    EXPECT_TRUE(on_mask.copy.fetch(mask.data()));
    EXPECT_EQ(mask, expected);
    apply_mask(y, x, on_mask, 1.25, count, dtype, stream);
    ref::apply_mask(want.data(), a.data(), expected.data(), 1.25, count, dtype);
    EXPECT_TRUE(y.fetch().same_bits(want));
  }
}

}  // namespace
}  // namespace esp::kernel
