// Tests FP8 GEMMs: exact for representable numbers, approximate for others. Tests delayed scales.
#include "esp/kernel/cuda/fp8.h"

#include "esp/kernel/cuda/test_gpu.h"

namespace esp::kernel {
namespace {

class Fp8OnGpu : public GpuTest {
 protected:
  struct Matrix {
    Matrix(GpuTest& test, int64_t rows, int64_t cols, const cuda::Fp8Scale& scale)
        : q(test, std::vector<uint8_t>(static_cast<size_t>(rows * cols), 0x7f)),
          transposed(test, std::vector<uint8_t>(static_cast<size_t>(rows * cols), 0x7f)),
          state(test, {scale}) {}
    GpuVector<uint8_t> q, transposed;
    GpuVector<cuda::Fp8Scale> state;
  };
  cuda::Fp8Scale state_of(const Matrix& matrix) {
    cuda::Fp8Scale state;
    EXPECT_TRUE(matrix.state.copy.fetch(&state));
    return state;
  }
};

TEST_F(Fp8OnGpu, GemmIsExactForSmallIntegers) {
  for (auto [m, n, k] : {std::tuple<int64_t, int64_t, int64_t>{16, 16, 16}, {128, 64, 96}, {80, 208, 144}})
    for (cuda::Fp8 kind : {cuda::Fp8::e4m3, cuda::Fp8::e5m2}) {
      const DType dtype = DType::bf16;
      auto whole = [&](uint64_t seed) {
        return [seed](int64_t i) { return std::floor(5 * random_unit(seed, 1, static_cast<uint64_t>(i))) - 2; };
      };
      Array a(m * k, dtype), b(n * k, dtype), c(m * n, dtype), bias(n, dtype), want(m * n, dtype);
      a.fill(whole(1));
      b.fill(whole(2));
      bias.fill(whole(3));
      GpuArray on_a(*this, a), on_b(*this, b), on_c(*this, c), on_bias(*this, bias);
      cuda::Fp8Scale twice, half;
      twice.scale = 2, twice.inverse = 0.5, half.scale = 0.5, half.inverse = 2;
      Matrix A(*this, m, k, twice), B(*this, n, k, half);
      cuda::quantize_fp8(A.q, A.transposed, on_a, m, k, A.state, kind, dtype, stream);
      cuda::quantize_fp8(B.q, nullptr, on_b, n, k, B.state, cuda::Fp8::e4m3, dtype, stream);
      EXPECT_EQ(state_of(A).amax, 2);
      cuda::Fp8GemmOptions options;
      options.kind_a = kind;
      options.bias = static_cast<void*>(on_bias);
      cuda::gemm_fp8(on_c, A.q, A.state, B.q, B.state, m, n, k, options, dtype, stream);
      options.bias = nullptr;
      options.accumulate = true;
      cuda::gemm_fp8(on_c, A.q, A.state, B.q, B.state, m, n, k, options, dtype, stream);
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j) {
          double sum = 0;
          for (int64_t p = 0; p < k; ++p) sum += a[i * k + p] * b[j * k + p];
          want.set(i * n + j, sum + bias[j]);
          want.set(i * n + j, want[i * n + j] + sum);
        }
      EXPECT_TRUE(on_c.fetch().same_bits(want)) << m << "x" << n << "x" << k;
      // Multiplies the transposed copy by itself: (Aᵀ)·(Aᵀ)ᵀ with Aᵀ [k, m].
      if (kind == cuda::Fp8::e4m3) {
        Array square(k * k, dtype), expected(k * k, dtype);
        GpuArray on_square(*this, square);
        cuda::gemm_fp8(on_square, A.transposed, A.state, A.transposed, A.state, k, k, m, {}, dtype, stream);
        for (int64_t i = 0; i < k; ++i)
          for (int64_t j = 0; j < k; ++j) {
            double sum = 0;
            for (int64_t p = 0; p < m; ++p) sum += a[p * k + i] * a[p * k + j];
            expected.set(i * k + j, sum);
          }
        EXPECT_TRUE(on_square.fetch().same_bits(expected));
      }
    }
}

TEST_F(Fp8OnGpu, GemmApproximatesMatmulOfRandomMatrices) {
  const int64_t m = 256, n = 192, k = 512;
  for (DType dtype : {DType::bf16, DType::f16}) {
    Array a = Array::random(m * k, dtype, 1), b = Array::random(n * k, dtype, 2, 0.02), c(m * n, dtype),
          want(m * n, dtype);
    GpuArray on_a(*this, a), on_b(*this, b), on_c(*this, c);
    Matrix A(*this, m, k, {}), B(*this, n, k, {});
    for (int step = 0; step < 2; ++step) {  // the first step only sets the scales
      cuda::quantize_fp8(A.q, A.transposed, on_a, m, k, A.state, cuda::Fp8::e4m3, dtype, stream);
      cuda::quantize_fp8(B.q, B.transposed, on_b, n, k, B.state, cuda::Fp8::e4m3, dtype, stream);
      if (step == 0) {
        cuda::update_fp8_scales(A.state, 1, cuda::Fp8::e4m3, stream);
        cuda::update_fp8_scales(B.state, 1, cuda::Fp8::e4m3, stream);
      }
    }
    EXPECT_EQ(state_of(A).scale, 256);    // 448 / (a largest magnitude just below 1), rounded down to a power of two
    EXPECT_EQ(state_of(B).scale, 16384);  // 448 / (a largest magnitude just below 0.02), rounded down to a power of two
    EXPECT_EQ(state_of(B).inverse, 1.0f / 16384);
    cuda::gemm_fp8(on_c, A.q, A.state, B.q, B.state, m, n, k, {}, dtype, stream);
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (int64_t p = 0; p < k; ++p) sum += a[i * k + p] * b[j * k + p];
        want.set(i * n + j, sum);
      }
    expect_close(on_c.fetch(), want, 0.05, "fp8");
  }
}

TEST_F(Fp8OnGpu, ScaleFollowsMaximumOfHistory) {
  cuda::Fp8Scale start;
  start.amax = 3;
  GpuVector<cuda::Fp8Scale> state(*this, {start});
  cuda::Fp8Scale got;
  auto update = [&](float amax) {
    EXPECT_TRUE(state.copy.fetch(&got));
    got.amax = amax;
    device::copy(static_cast<cuda::Fp8Scale*>(state), &got, sizeof got, stream);
    cuda::update_fp8_scales(state, 1, cuda::Fp8::e4m3, stream);
    EXPECT_TRUE(state.copy.fetch(&got));
    return got.scale;
  };
  EXPECT_EQ(update(3), 128);
  EXPECT_EQ(got.amax, 0);
  EXPECT_EQ(update(100), 4);
  for (int i = 0; i < cuda::Fp8Scale::kHistory - 1; ++i) EXPECT_EQ(update(1), 4) << i;
  EXPECT_EQ(update(1), 256) << "the largest amax is no longer in the history";
  for (int i = 0; i < cuda::Fp8Scale::kHistory; ++i) update(0);
  EXPECT_EQ(got.scale, 256) << "an amax of zero must not change the scale";
}

}  // namespace
}  // namespace esp::kernel
