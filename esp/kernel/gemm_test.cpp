// Compares the GEMM of every instruction set of this machine with the reference GEMM (ref), within the rounding error
// of a sum of K terms. A slice of rows or columns, another number of threads and another layout must give bit-identical
// results.
#include "esp/kernel/gemm.h"

#include <malloc.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include "esp/base/rng.h"
#include "esp/kernel/cpu/gemm_blocks.h"
#include "esp/kernel/elements.h"

namespace esp::kernel {
namespace {

constexpr DType kFloating[] = {DType::f32, DType::f64, DType::bf16, DType::f16};
constexpr Activation kActivations[] = {Activation::none,     Activation::relu, Activation::gelu,
                                       Activation::gelu_erf, Activation::silu, Activation::tanh};

using Bytes = std::vector<std::byte>;

double value_at(const Bytes& data, int64_t index, DType dtype) {
  double value = 0;
  with_element(dtype, [&]<typename T>(std::type_identity<T>) {
    T element;
    std::memcpy(static_cast<void*>(&element), data.data() + static_cast<size_t>(index) * sizeof(T), sizeof(T));
    value = static_cast<double>(static_cast<Accumulator<T>>(element));
  });
  return value;
}

Bytes filled(int64_t count, DType dtype, double value) {
  Bytes data(static_cast<size_t>(count) * size_of(dtype));
  with_element(dtype, [&]<typename T>(std::type_identity<T>) {
    for (int64_t i = 0; i < count; ++i) {
      const T element = static_cast<T>(static_cast<Accumulator<T>>(value));
      std::memcpy(data.data() + static_cast<size_t>(i) * sizeof(T), static_cast<const void*>(&element), sizeof(T));
    }
  });
  return data;
}

Bytes random_matrix(int64_t count, DType dtype, uint64_t seed) {
  Bytes data(static_cast<size_t>(count) * size_of(dtype));
  with_element(dtype, [&]<typename T>(std::type_identity<T>) {
    for (int64_t i = 0; i < count; ++i) {
      const double unit = random_unit(seed, 3, static_cast<uint64_t>(i)) * 2 - 1;
      const T element = static_cast<T>(static_cast<Accumulator<T>>(unit));
      std::memcpy(data.data() + static_cast<size_t>(i) * sizeof(T), static_cast<const void*>(&element), sizeof(T));
    }
  });
  return data;
}

struct Case {
  int64_t m, n, k;
  GemmOptions options;
  bool bias = false, pre = false, pre_in = false;
  DType dtype = DType::f32;
  std::string text() const {
    return fmt::format("{} {}x{}x{} {}{} alpha {} beta {} {}{}{}{} ld {},{},{}", name_of(dtype), m, n, k,
                       options.transpose_a ? 'T' : 'N', options.transpose_b ? 'T' : 'N', options.alpha, options.beta,
                       bias ? "bias " : "", pre ? "pre " : "", pre_in ? "slope " : "",
                       static_cast<int>(options.activation), options.lda, options.ldb, options.ldc);
  }
};

// The operands of a test case, allocated with its leading dimensions.
struct Operands {
  explicit Operands(const Case& it, uint64_t seed = 1) {
    const GemmOptions& o = it.options;
    const int64_t lda = o.lda ? o.lda : o.transpose_a ? it.m : it.k, ldb = o.ldb ? o.ldb : o.transpose_b ? it.k : it.n;
    const int64_t ldc = o.ldc ? o.ldc : it.n;
    a = random_matrix(lda * (o.transpose_a ? it.k : it.m), it.dtype, seed);
    b = random_matrix(ldb * (o.transpose_b ? it.n : it.k), it.dtype, seed + 1);
    c = random_matrix(ldc * it.m, it.dtype, seed + 2);
    bias = random_matrix(it.n, it.dtype, seed + 3);
    pre = filled(ldc * it.m, it.dtype, 7);
    pre_in = random_matrix(ldc * it.m, it.dtype, seed + 4);
  }
  GemmOptions options_of(const Case& it) {
    GemmOptions o = it.options;
    if (it.bias) o.bias = bias.data();
    if (it.pre) o.pre_activation = pre.data();
    if (it.pre_in) o.pre_activation_in = pre_in.data();
    return o;
  }
  void run(const Case& it, const device::Stream& stream) {
    gemm(c.data(), a.data(), b.data(), it.m, it.n, it.k, options_of(it), it.dtype, stream);
  }
  void run_ref(const Case& it) { ref::gemm(c.data(), a.data(), b.data(), it.m, it.n, it.k, options_of(it), it.dtype); }
  Bytes a, b, c, bias, pre, pre_in;
};

// The relative distance of neighbouring values of the type: results may be rounded to different neighbours.
double epsilon_of(DType dtype) {
  return dtype == DType::f64 ? 0x1p-52 : dtype == DType::f32 ? 0x1p-23 : dtype == DType::bf16 ? 0x1p-7 : 0x1p-10;
}

void expect_near(const Bytes& got, const Bytes& want, const Case& it, const char* what) {
  ASSERT_EQ(got.size(), want.size());
  // Each term a·b is below 1 in magnitude. The bound allows one rounding for each of the K additions and one rounding
  // to the dtype.
  const double sums = (it.dtype == DType::f64 ? 0x1p-52 : 0x1p-23) * (8 + 0.5 * static_cast<double>(it.k));
  for (int64_t i = 0; i < static_cast<int64_t>(got.size() / size_of(it.dtype)); ++i) {
    const double x = value_at(got, i, it.dtype), y = value_at(want, i, it.dtype);
    ASSERT_LE(std::abs(x - y), 4 * std::abs(it.options.alpha) * sums + epsilon_of(it.dtype) * std::abs(y))
        << what << " element " << i << " of " << it.text() << " is " << x << ", ref has " << y;
  }
}

class GemmOnTarget : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
  static void check(const Case& it) {
    Operands got(it), want(it);
    got.run(it, device::Stream{});
    want.run_ref(it);
    expect_near(got.c, want.c, it, "C");
    expect_near(got.pre, want.pre, it, "pre-activation");
  }
};

TEST_P(GemmOnTarget, MatchesRefForEveryTransposeAndShape) {
  for (DType dtype : kFloating)
    for (auto [m, n, k] : {std::array<int64_t, 3>{1, 1, 1},
                           {1, 5, 3},
                           {2, 7, 9},
                           {3, 49, 17},
                           {5, 16, 33},
                           {8, 48, 8},
                           {9, 97, 40},
                           {17, 33, 65},
                           {31, 101, 5},
                           {50, 3, 129}})
      for (int orientation = 0; orientation < 4; ++orientation) {
        Case it{m, n, k, {}};
        it.dtype = dtype;
        it.options.transpose_a = orientation & 1;
        it.options.transpose_b = orientation & 2;
        check(it);
      }
}

TEST_P(GemmOnTarget, MatchesRefOverSeveralBlocksOfK) {
  for (DType dtype : kFloating)
    for (int64_t k : {383, 385, 767, 769, 1600})
      for (int orientation = 0; orientation < 4; ++orientation)
        for (double beta : {0.0, 1.0, -0.5}) {
          Case it{13, 53, k, {}};
          it.dtype = dtype;
          it.options.transpose_a = orientation & 1;
          it.options.transpose_b = orientation & 2;
          it.options.beta = beta;
          it.options.alpha = 0.75;
          check(it);
          it.pre_in = true;
          it.options.activation = Activation::gelu;
          check(it);
        }
}

TEST_P(GemmOnTarget, MatchesRefForEveryEpilogue) {
  for (DType dtype : kFloating)
    for (Activation activation : kActivations)
      for (int64_t k : {20, 800})
        for (double beta : {0.0, 1.0}) {
          Case it{11, 51, k, {}};
          it.dtype = dtype;
          it.options.activation = activation;
          it.options.beta = beta;
          it.options.alpha = 0.25;
          check(it);
          it.bias = true;
          check(it);
          it.pre = true;
          check(it);
          it.bias = it.pre = false;
          it.pre_in = true;
          check(it);
        }
}

TEST_P(GemmOnTarget, UsesLeadingDimensionsAndKeepsGaps) {
  for (DType dtype : kFloating)
    for (int orientation = 0; orientation < 4; ++orientation) {
      Case it{21, 50, 30, {}};
      it.dtype = dtype;
      it.options.transpose_a = orientation & 1;
      it.options.transpose_b = orientation & 2;
      it.options.lda = 37;
      it.options.ldb = 61;
      it.options.ldc = 57;
      it.bias = it.pre = true;
      it.options.activation = Activation::relu;
      Operands got(it), want(it);
      got.run(it, device::Stream{});
      want.run_ref(it);
      expect_near(got.c, want.c, it, "C");
      expect_near(got.pre, want.pre, it, "pre-activation");
      const Bytes untouched = Operands(it).c;
      for (int64_t i = 0; i < it.m; ++i)
        for (int64_t j = it.n; j < it.options.ldc; ++j)
          ASSERT_EQ(value_at(got.c, i * it.options.ldc + j, dtype), value_at(untouched, i * it.options.ldc + j, dtype));
    }
}

TEST_P(GemmOnTarget, HandlesEmptyDimensions) {
  for (DType dtype : kFloating)
    for (double beta : {0.0, 1.0, 2.0}) {
      for (auto [m, n, k] : {std::array<int64_t, 3>{0, 5, 4}, {5, 0, 4}, {5, 7, 0}, {0, 0, 0}}) {
        Case it{m, n, k, {}};
        it.dtype = dtype;
        it.options.beta = beta;
        check(it);
        it.bias = it.pre = true;
        it.options.activation = Activation::tanh;
        check(it);
      }
    }
}

TEST_P(GemmOnTarget, BetaZeroDoesNotReadC) {
  for (DType dtype : kFloating)
    for (int64_t k : {0, 6, 800}) {
      Case it{10, 50, k, {}};
      it.dtype = dtype;
      Operands got(it), want(it);
      got.c = filled(it.m * it.n, dtype, std::numeric_limits<double>::quiet_NaN());
      got.run(it, device::Stream{});
      want.run_ref(it);
      expect_near(got.c, want.c, it, "C");
    }
}

// A NaN or an infinity reaches only the elements of C that depend on it. Padding must not spread it.
TEST_P(GemmOnTarget, NaNStaysInItsRowAndColumn) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const int64_t m = 11, n = 51, k = 19;
  for (int64_t rows : {int64_t{2}, m}) {
    std::vector<float> a(static_cast<size_t>(rows * k), 1), b(static_cast<size_t>(k * n), 1),
        c(static_cast<size_t>(rows * n));
    a[static_cast<size_t>(1 * k + 3)] = nan;
    b[static_cast<size_t>(2 * n + 50)] = inf;
    gemm(c.data(), a.data(), b.data(), rows, n, k, {}, DType::f32, {});
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < n; ++j) {
        const float value = c[static_cast<size_t>(i * n + j)];
        if (i == 1)
          EXPECT_TRUE(std::isnan(value)) << i << "," << j;
        else
          EXPECT_EQ(value, j == 50 ? inf : static_cast<float>(k)) << i << "," << j;
      }
  }
}

TEST_P(GemmOnTarget, SubnormalsAreNotFlushed) {
  const float tiny = 0x1p-140f;
  std::vector<float> a = {tiny, tiny, tiny}, b = {1, 2, 4}, c(1);
  gemm(c.data(), a.data(), b.data(), 1, 1, 3, {}, DType::f32, {});
  EXPECT_EQ(c[0], 7 * tiny);
}

// A slice of rows or columns is bit-identical to the same part of the whole GEMM, for any partition and any code path.
TEST_P(GemmOnTarget, SlicesMatchWholeGemmBitForBit) {
  for (DType dtype : kFloating)
    for (int orientation = 0; orientation < 4; ++orientation)
      for (int64_t k : {37, 800}) {
        Case it{45, 210, k, {}};
        it.dtype = dtype;
        it.options.transpose_a = orientation & 1;
        it.options.transpose_b = orientation & 2;
        it.options.beta = 0.5;
        it.options.activation = Activation::gelu;
        it.bias = true;
        Operands whole(it);
        const GemmStrides stride = strides_of(it.m, it.n, it.k, it.options);
        const Bytes before = whole.c;
        whole.run(it, device::Stream{});
        const size_t size = size_of(dtype);
        auto check_slice = [&](int64_t row, int64_t rows, int64_t column, int64_t columns) {
          GemmOptions o = whole.options_of(it);
          o.lda = it.options.transpose_a ? it.m : it.k;
          o.ldb = it.options.transpose_b ? it.k : it.n;
          o.ldc = it.n;
          o.bias = whole.bias.data() + static_cast<size_t>(column) * size;
          Bytes c = before;
          gemm(c.data() + static_cast<size_t>(row * it.n + column) * size,
               whole.a.data() + static_cast<size_t>(row * stride.a_row) * size,
               whole.b.data() + static_cast<size_t>(column * stride.b_col) * size, rows, columns, it.k, o, dtype, {});
          for (int64_t i = row; i < row + rows; ++i) {
            const size_t at = static_cast<size_t>(i * it.n + column) * size;
            ASSERT_EQ(std::memcmp(c.data() + at, whole.c.data() + at, static_cast<size_t>(columns) * size), 0)
                << it.text() << " rows " << row << "+" << rows << " columns " << column << "+" << columns;
          }
        };
        for (int64_t row = 0; row < it.m; row += 9) check_slice(row, 1, 0, it.n);
        check_slice(3, 2, 0, it.n);
        check_slice(5, 3, 1, it.n - 1);
        check_slice(40, 4, 17, 100);
        check_slice(7, 21, 0, it.n);
        check_slice(0, it.m, 0, 1);
        check_slice(0, it.m, 100, 47);
        check_slice(8, 8, 48, 48);
        check_slice(44, 1, 209, 1);
      }
}

TEST_P(GemmOnTarget, ResultsAreBitIdenticalForAnyNumberOfThreads) {
  for (DType dtype : kFloating)
    for (auto [m, n, k] :
         {std::array<int64_t, 3>{1, 700, 800}, {7, 700, 800}, {130, 70, 800}, {200, 5, 800}, {40, 300, 40}})
      for (int orientation = 0; orientation < 4; ++orientation) {
        Case it{m, n, k, {}};
        it.dtype = dtype;
        it.options.transpose_a = orientation & 1;
        it.options.transpose_b = orientation & 2;
        it.options.beta = 1;
        it.bias = it.pre = true;
        it.options.activation = Activation::silu;
        Operands alone(it);
        alone.run(it, device::Stream{});
        for (int threads : {1, 2, 3, 5}) {
          device::ThreadPool pool(threads);
          Operands shared(it);
          device::Stream stream;
          stream.pool = &pool;
          shared.run(it, stream);
          ASSERT_TRUE(shared.c == alone.c) << it.text() << " with " << threads << " threads";
          ASSERT_TRUE(shared.pre == alone.pre) << it.text() << " with " << threads << " threads";
        }
      }
}

// The layout of an operand does not change the order of summation.
TEST_P(GemmOnTarget, TransposedOperandsGiveBitIdenticalResults) {
  for (DType dtype : kFloating)
    for (int64_t m : {1, 2, 5, 30}) {
      const int64_t n = 67, k = 800;
      const size_t size = size_of(dtype);
      Case it{m, n, k, {}};
      it.dtype = dtype;
      Operands plain(it), turned(it);
      auto transposed = [&](const Bytes& from, int64_t rows, int64_t columns) {
        Bytes to(from.size());
        for (int64_t i = 0; i < rows; ++i)
          for (int64_t j = 0; j < columns; ++j)
            std::memcpy(to.data() + static_cast<size_t>(j * rows + i) * size,
                        from.data() + static_cast<size_t>(i * columns + j) * size, size);
        return to;
      };
      turned.a = transposed(plain.a, m, k);
      turned.b = transposed(plain.b, k, n);
      plain.run(it, device::Stream{});
      it.options.transpose_a = it.options.transpose_b = true;
      turned.run(it, device::Stream{});
      EXPECT_TRUE(plain.c == turned.c) << it.text();
    }
}

INSTANTIATE_TEST_SUITE_P(Every, GemmOnTarget, testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& target) { return std::string(hwy::TargetName(target.param)); });

TEST(Gemm, RefMatchesHandComputedResult) {
  std::vector<double> a = {1, 2, 3, 4, 5, 6}, b = {1, 0, -1, 2, 1, 1}, c = {10, 20, 30, 40}, bias = {100, -1000};
  GemmOptions options;
  options.alpha = 2;
  options.beta = 1;
  options.bias = bias.data();
  options.activation = Activation::relu;
  ref::gemm(c.data(), a.data(), b.data(), 2, 2, 3, options, DType::f64);
  // A·B = {{2, 7}, {5, 16}}; the expected values also contain alpha, beta·C, the bias and the activation
  EXPECT_EQ(c, (std::vector<double>{114, 0, 140, 0}));
}

// The scratch memory for packing is kept, so a second call of the same or a smaller size allocates nothing.
TEST(Gemm, AllocatesScratchOnlyInFirstCall) {
  device::ThreadPool pool(2);
  device::Stream stream;
  stream.pool = &pool;
  std::vector<float> a(300 * 900, 1), b(900 * 500, 1), c(300 * 500);
  auto multiply = [&](int64_t m, DType dtype) {
    GemmOptions options;
    options.transpose_b = true;
    gemm(c.data(), a.data(), b.data(), m, 400, 800, options, dtype, stream);
  };
  multiply(300, DType::f32);
  multiply(300, DType::bf16);
  const size_t heap = mallinfo2().uordblks + mallinfo2().hblkhd;
  const void* scratch = GemmScratch::of_this_thread().reserve(1);
  for (int64_t m : {300, 200, 6, 1})
    for (DType dtype : {DType::f32, DType::bf16}) multiply(m, dtype);
  EXPECT_EQ(mallinfo2().uordblks + mallinfo2().hblkhd, heap);
  EXPECT_EQ(GemmScratch::of_this_thread().reserve(1), scratch);
}

// 16-bit types are summed in fp32 over all of K. If sums were bf16, a sum of ones would stop growing at 256.
TEST(Gemm, SixteenBitSumsAreRoundedOnce) {
  for (DType dtype : {DType::bf16, DType::f16}) {
    const int64_t k = 2048;
    Bytes a = filled(k, dtype, 1), b = filled(k * 3, dtype, 1), c = filled(3, dtype, 0);
    gemm(c.data(), a.data(), b.data(), 1, 3, k, {}, dtype, {});
    for (int64_t j = 0; j < 3; ++j) EXPECT_EQ(value_at(c, j, dtype), 2048);
  }
}

}  // namespace
}  // namespace esp::kernel
