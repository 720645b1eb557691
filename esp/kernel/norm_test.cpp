#include "esp/kernel/norm.h"

#include <limits>

#include "esp/kernel/test_arrays.h"

namespace esp::kernel {
namespace {

// All inputs and outputs of one normalisation.
struct Case {
  Case(NormKind kind, int64_t rows, int64_t dim, DType type)
      : shape{.kind = kind, .rows = rows, .dim = dim, .eps = 1e-5},
        dtype(type),
        x(Array::random(rows * dim, type, 1, 3)),
        residual(Array::random(rows * dim, type, 2, 3)),
        gamma(Array::random(dim, type, 3, 2)),
        beta(Array::random(dim, type, 4, 2)),
        dy(Array::random(rows * dim, type, 5)),
        y(rows * dim, type),
        sum(rows * dim, type),
        mean(rows, accumulator_of(type)),
        rstd(rows, accumulator_of(type)) {}
  bool layer() const { return shape.kind == NormKind::layer; }
  std::string where(const std::string& target) const {
    return fmt::format("{} {} {} {}x{}", target, layer() ? "layer" : "rms", name_of(dtype), shape.rows, shape.dim);
  }
  void* mean_data() { return layer() ? mean.data() : nullptr; }
  const void* beta_data() const { return layer() ? beta.data() : nullptr; }

  NormShape shape;
  DType dtype;
  Array x, residual, gamma, beta, dy, y, sum, mean, rstd;
};

template <typename F>
void on_every_case(F f) {
  for_each_target([&](const std::string& target) {
    for (DType dtype : kFloating)
      for (NormKind kind : {NormKind::layer, NormKind::rms})
        for (int64_t rows : {1, 5, 23})
          for (int64_t dim : {1, 3, 16, 65, 384, 1001}) {
            Case it(kind, rows, dim, dtype);
            f(it, it.where(target));
          }
  });
}

// Tolerance in units in the last place (ulp). Statistics of a row are sums of up to 1001 terms. The reference kernel
// adds these in fp64, so the last bits of the fp32 results differ.
constexpr double kPlaces = 60;

TEST(Norm, ForwardMatchesRefWithAndWithoutResidual) {
  const Threads pair(2);
  on_every_case([&](Case& it, const std::string& where) {
    // the exact result is 0/√eps, so the computed result is only rounding error
    if (it.layer() && it.shape.dim == 1) return;
    for (bool fused : {false, true}) {
      Case want = it;
      const void* residual = fused ? it.residual.data() : nullptr;
      norm_forward(it.y.data(), it.mean_data(), it.rstd.data(), it.sum.data(), it.x.data(), residual, it.gamma.data(),
                   it.beta_data(), it.shape, it.dtype, pair);
      ref::norm_forward(want.y.data(), want.mean_data(), want.rstd.data(), want.sum.data(), want.x.data(), residual,
                        want.gamma.data(), want.beta_data(), want.shape, want.dtype);
      expect_near(it.y, want.y, kPlaces, 2, where);
      expect_near(it.mean, want.mean, kPlaces, 1, where);
      expect_near(it.rstd, want.rstd, kPlaces, 0, where);
      EXPECT_TRUE(it.sum.same_bits(want.sum)) << where;
    }
  });
}

TEST(Norm, SumMayAliasEitherInput) {
  const Threads alone(1);
  for (DType dtype : kFloating)
    for (bool over_x : {false, true}) {
      Case separate(NormKind::layer, 7, 130, dtype), over = separate;
      norm_forward(separate.y.data(), separate.mean.data(), separate.rstd.data(), separate.sum.data(),
                   separate.x.data(), separate.residual.data(), separate.gamma.data(), separate.beta.data(),
                   separate.shape, dtype, alone);
      Array& sum = over_x ? over.x : over.residual;
      norm_forward(over.y.data(), over.mean.data(), over.rstd.data(), sum.data(), over.x.data(), over.residual.data(),
                   over.gamma.data(), over.beta.data(), over.shape, dtype, alone);
      EXPECT_TRUE(over.y.same_bits(separate.y));
      EXPECT_TRUE(sum.same_bits(separate.sum));
    }
}

TEST(Norm, InputGradientMatchesRefWhenOverwritingAndAccumulating) {
  const Threads pair(2);
  on_every_case([&](Case& it, const std::string& where) {
    ref::norm_forward(it.y.data(), it.mean_data(), it.rstd.data(), nullptr, it.x.data(), nullptr, it.gamma.data(),
                      it.beta_data(), it.shape, it.dtype);
    if (it.layer() && it.shape.dim == 1) return;
    for (bool accumulate : {false, true}) {
      Array dx = it.residual, want = dx;
      norm_backward_input(dx.data(), it.dy.data(), it.x.data(), it.mean_data(), it.rstd.data(), it.gamma.data(),
                          it.shape, accumulate, it.dtype, pair);
      ref::norm_backward_input(want.data(), it.dy.data(), it.x.data(), it.mean_data(), it.rstd.data(), it.gamma.data(),
                               it.shape, accumulate, it.dtype);
      double largest = 0;
      for (int64_t r = 0; r < it.rstd.count(); ++r) largest = std::max(largest, it.rstd[r]);
      expect_near(dx, want, kPlaces, 4 * largest, where);
    }
  });
}

TEST(Norm, WeightGradientsMatchRefAndAccumulate) {
  const Threads pair(2);
  on_every_case([&](Case& it, const std::string& where) {
    ref::norm_forward(it.y.data(), it.mean_data(), it.rstd.data(), nullptr, it.x.data(), nullptr, it.gamma.data(),
                      it.beta_data(), it.shape, it.dtype);
    Array dgamma = it.gamma, dbeta = it.beta, gamma_want = dgamma, beta_want = dbeta;
    void* dbeta_data = it.layer() ? dbeta.data() : nullptr;
    norm_backward_weight(dgamma.data(), dbeta_data, it.dy.data(), it.x.data(), it.mean_data(), it.rstd.data(), it.shape,
                         it.dtype, pair);
    ref::norm_backward_weight(gamma_want.data(), it.layer() ? beta_want.data() : nullptr, it.dy.data(), it.x.data(),
                              it.mean_data(), it.rstd.data(), it.shape, it.dtype);
    expect_near(dgamma, gamma_want, kPlaces, 4, where);
    expect_near(dbeta, beta_want, kPlaces, 4, where);
  });
}

TEST(Norm, BackwardMatchesFiniteDifferences) {
  const Threads alone(1);
  for (NormKind kind : {NormKind::layer, NormKind::rms}) {
    Case it(kind, 4, 19, DType::f64);
    auto loss = [&] {
      norm_forward(it.y.data(), it.mean_data(), it.rstd.data(), nullptr, it.x.data(), nullptr, it.gamma.data(),
                   it.beta_data(), it.shape, it.dtype, alone);
      return dot(it.y, it.dy);
    };
    loss();
    Array dx(it.x.count(), DType::f64), dgamma(19, DType::f64), dbeta(19, DType::f64);
    norm_backward_input(dx.data(), it.dy.data(), it.x.data(), it.mean_data(), it.rstd.data(), it.gamma.data(), it.shape,
                        false, it.dtype, alone);
    norm_backward_weight(dgamma.data(), it.layer() ? dbeta.data() : nullptr, it.dy.data(), it.x.data(), it.mean_data(),
                         it.rstd.data(), it.shape, it.dtype, alone);
    expect_gradient(it.x, dx, loss, "x");
    expect_gradient(it.gamma, dgamma, loss, "gamma");
    if (it.layer()) expect_gradient(it.beta, dbeta, loss, "beta");
  }
}

TEST(Norm, RowsHaveMeanZeroAndVarianceOne) {
  const Threads alone(1);
  Case it(NormKind::layer, 6, 768, DType::f32);
  // a mean far from zero, for which one-pass variance formulas fail
  it.x.fill([&](int64_t i) { return 100 + it.residual[i]; });
  it.gamma.fill([](int64_t) { return 1.0; });
  it.beta.fill([](int64_t) { return 0.0; });
  norm_forward(it.y.data(), it.mean.data(), it.rstd.data(), nullptr, it.x.data(), nullptr, it.gamma.data(),
               it.beta.data(), it.shape, it.dtype, alone);
  for (int64_t r = 0; r < 6; ++r) {
    double sum = 0, square = 0;
    for (int64_t c = 0; c < 768; ++c) {
      sum += it.y[r * 768 + c];
      square += it.y[r * 768 + c] * it.y[r * 768 + c];
    }
    EXPECT_NEAR(sum / 768, 0, 1e-5);
    EXPECT_NEAR(square / 768, 1, 1e-4);
  }
}

TEST(Norm, NaNStaysInItsRow) {
  const Threads alone(1);
  Case it(NormKind::layer, 3, 40, DType::bf16);
  it.x.set(40 + 7, std::numeric_limits<double>::quiet_NaN());
  norm_forward(it.y.data(), it.mean.data(), it.rstd.data(), nullptr, it.x.data(), nullptr, it.gamma.data(),
               it.beta.data(), it.shape, it.dtype, alone);
  for (int64_t i = 0; i < 120; ++i) EXPECT_EQ(std::isnan(it.y[i]), i / 40 == 1) << i;
}

TEST(Norm, ResultsAreBitIdenticalForAnyNumberOfThreads) {
  Case it(NormKind::layer, 301, 257, DType::f32), other = it;
  Array dgamma = it.gamma, dbeta = it.beta, dgamma3 = it.gamma, dbeta3 = it.beta;
  norm_forward(it.y.data(), it.mean.data(), it.rstd.data(), it.sum.data(), it.x.data(), it.residual.data(),
               it.gamma.data(), it.beta.data(), it.shape, it.dtype, Threads(1));
  norm_forward(other.y.data(), other.mean.data(), other.rstd.data(), other.sum.data(), it.x.data(), it.residual.data(),
               it.gamma.data(), it.beta.data(), it.shape, it.dtype, Threads(3));
  EXPECT_TRUE(it.y.same_bits(other.y));
  norm_backward_weight(dgamma.data(), dbeta.data(), it.dy.data(), it.sum.data(), it.mean.data(), it.rstd.data(),
                       it.shape, it.dtype, Threads(1));
  norm_backward_weight(dgamma3.data(), dbeta3.data(), it.dy.data(), it.sum.data(), it.mean.data(), it.rstd.data(),
                       it.shape, it.dtype, Threads(3));
  EXPECT_TRUE(dgamma.same_bits(dgamma3));
  EXPECT_TRUE(dbeta.same_bits(dbeta3));
}

}  // namespace
}  // namespace esp::kernel
