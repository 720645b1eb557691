// Compares GPU GEMMs with the reference GEMM (ref): transposes, strides, alpha and beta, epilogues, and both aligned
// and odd shapes.
#include "esp/kernel/cuda/gemm_settings.h"
#include "esp/kernel/cuda/test_gpu.h"
#include "esp/kernel/gemm.h"

#include "esp/base/error.h"

namespace esp::kernel {
namespace {

class GemmOnGpu : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    // tuning is off, because timing the candidates would take most of the test's time
    if (!IsSkipped()) cuda::set_gemm({.tune = false}, stream);
  }

  struct Size {
    int64_t m, n, k;
  };
  // `places` is the tolerance for the norm of the difference from ref, as a multiple of one rounding error.
  void check(const Size& size, GemmOptions options, DType dtype, double places, int64_t shift = 0) {
    const auto [m, n, k] = size;
    const int64_t ldc = options.ldc ? options.ldc : n;
    const std::string where = fmt::format("{} {}x{}x{}{}{} ldc {} beta {} {}{}{}", name_of(dtype), m, n, k,
                                          options.transpose_a ? " ta" : "", options.transpose_b ? " tb" : "", ldc,
                                          options.beta, name_of(options.activation), options.bias ? " bias" : "",
                                          options.pre_activation_in ? " slope"
                                          : options.pre_activation  ? " kept"
                                                                    : "");
    Array a = Array::random(m * k, dtype, 1), b = Array::random(k * n, dtype, 2, k > 64 ? 0.3 : 1);
    Array c = Array::random(m * ldc, dtype, 3), bias = Array::random(n, dtype, 4),
          pre = Array::random(m * ldc, dtype, 5, 3);
    GpuArray on_a(*this, a, shift), on_b(*this, b, shift), on_c(*this, c, shift), on_bias(*this, bias),
        on_pre(*this, pre);
    GemmOptions on = options;
    on.bias = options.bias ? static_cast<void*>(on_bias) : nullptr;
    on.pre_activation = options.pre_activation ? static_cast<void*>(on_pre) : nullptr;
    on.pre_activation_in = options.pre_activation_in ? static_cast<void*>(on_pre) : nullptr;
    gemm(on_c, on_a, on_b, m, n, k, on, dtype, stream);
    if (options.bias) options.bias = bias.data();
    if (options.pre_activation) options.pre_activation = pre.data();
    if (options.pre_activation_in) options.pre_activation_in = pre.data();
    ref::gemm(c.data(), a.data(), b.data(), m, n, k, options, dtype);
    expect_close(on_c.fetch(), c, places * rounding(dtype), where);
    if (options.pre_activation) expect_close(on_pre.fetch(), pre, places * rounding(dtype), where + " kept");
  }
};

constexpr char kSome = 0;  // its address marks an option as set; the test replaces it by an array that is created later

TEST_F(GemmOnGpu, MatchesRefForTransposesAndOddShapes) {
  for (DType dtype : kFloating)
    for (bool ta : {false, true})
      for (bool tb : {false, true})
        for (const Size& size : {Size{1, 1, 1}, {5, 3, 7}, {64, 64, 64}, {33, 129, 65}, {128, 256, 96}}) {
          GemmOptions o;
          o.transpose_a = ta, o.transpose_b = tb;
          check(size, o, dtype, 2);
          o.beta = 1;
          check(size, o, dtype, 2);
          o.alpha = -0.5, o.beta = 0.25, o.ldc = size.n + 3;
          check(size, o, dtype, 2);
        }
}

TEST_F(GemmOnGpu, RaggedRowCountsMatchRefWithSharedPlan) {
  cuda::set_gemm({.tune = true}, stream);
  for (DType dtype : kFloating)
    for (int64_t rows : {1, 2, 15, 16, 17, 100, 127, 128, 129, 1000})
      for (bool weights : {false, true}) {
        GemmOptions o;
        o.ragged = true;
        o.transpose_a = weights;
        check(weights ? Size{64, 96, rows} : Size{rows, 96, 64}, o, dtype, 3);
        o.beta = 1;
        check(weights ? Size{64, 96, rows} : Size{rows, 96, 64}, o, dtype, 3);
        if (weights) continue;
        o.beta = 0;
        o.transpose_b = true;
        check({rows, 96, 64}, o, dtype, 3);
        o.activation = Activation::gelu;
        o.pre_activation_in = &kSome;
        check({rows, 96, 64}, o, dtype, 8);
        o.pre_activation_in = nullptr;
        o.transpose_b = false;
        o.bias = &kSome;
        o.pre_activation = const_cast<char*>(&kSome);
        check({rows, 96, 64}, o, dtype, 8);
      }
  EXPECT_EQ(cuda::gemm_choices(stream), "");  // no algorithm was timed, so there is no choice to save
}

TEST_F(GemmOnGpu, TuningDoesNotChangeResult) {
  cuda::set_gemm({.tune = true}, stream);
  for (DType dtype : {DType::bf16, DType::f32})
    for (double beta : {0.0, 1.0}) {
      GemmOptions o;
      o.beta = beta;
      check({128, 256, 96}, o, dtype, 2);
      o.transpose_a = true;
      check({64, 72, 2000}, o, dtype, 3);
    }
}

TEST_F(GemmOnGpu, MatchesRefForAnyAlignment) {
  for (DType dtype : kFloating) check({40, 48, 32}, {}, dtype, 2, 1);
}

TEST_F(GemmOnGpu, EpiloguesMatchRef) {
  for (DType dtype : kFloating)
    for (Activation activation : {Activation::none, Activation::relu, Activation::gelu, Activation::gelu_erf,
                                  Activation::silu, Activation::tanh})
      for (bool kept : {false, true})
        for (bool bias : {false, true})
          for (const Size& size : {Size{64, 128, 64}, {17, 23, 31}})
            for (double beta : {0.0, 1.0}) {
              GemmOptions o;
              o.transpose_b = true;
              o.activation = activation;
              o.beta = beta;
              if (bias) o.bias = &kSome;
              if (kept) o.pre_activation = const_cast<char*>(&kSome);
              check(size, o, dtype, 4);
            }
}

TEST_F(GemmOnGpu, ActivationDerivativesMatchRef) {
  for (DType dtype : kFloating)
    for (Activation activation : {Activation::relu, Activation::gelu, Activation::gelu_erf, Activation::silu})
      for (const Size& size : {Size{64, 128, 64}, {17, 23, 31}})
        for (double beta : {0.0, 1.0}) {
          GemmOptions o;
          o.activation = activation;
          o.beta = beta;
          o.pre_activation_in = &kSome;
          check(size, o, dtype, 4);
        }
}

TEST_F(GemmOnGpu, LongSumsMatchRef) {
  for (DType dtype : {DType::bf16, DType::f32}) {
    GemmOptions o;
    o.transpose_a = true;
    o.beta = 1;
    check({48, 64, 5000}, o, dtype, 3);
  }
}

TEST_F(GemmOnGpu, MatchesRefWhenKIsZero) {
  GemmOptions o;
  o.bias = &kSome;
  o.beta = 0.5;
  check({5, 6, 0}, o, DType::f32, 1);
}

TEST_F(GemmOnGpu, AlgorithmChoicesRoundTripThroughText) {
  check({256, 256, 256}, {}, DType::bf16, 2);
  const std::string text = cuda::gemm_choices(stream);
  EXPECT_NE(text.find(" 256 256 256 "), std::string::npos);
  device::GpuQueue other({device::DeviceKind::cuda, 0});
  cuda::read_gemm_choices(text, other.stream());
  EXPECT_EQ(cuda::gemm_choices(other.stream()), text);
  EXPECT_THROW(cuda::read_gemm_choices("not a choice", other.stream()), UsageError);
}

TEST_F(GemmOnGpu, UsesTf32WhenEnabled) {
  const int64_t n = 256;
  Array a = Array::random(n * n, DType::f32, 1), c(n * n, DType::f32);
  GpuArray on_a(*this, a), exact(*this, c), coarse(*this, c);
  gemm(exact, on_a, on_a, n, n, n, {}, DType::f32, stream);
  cuda::set_gemm({.tune = false, .tf32 = true}, stream);
  gemm(coarse, on_a, on_a, n, n, n, {}, DType::f32, stream);
  expect_close(coarse.fetch(), exact.fetch(), 2e-3, "tf32");
  EXPECT_FALSE(coarse.fetch().same_bits(exact.fetch()));
}

}  // namespace
}  // namespace esp::kernel
