#include "esp/kernel/cross_entropy.h"

#include <limits>

#include "esp/kernel/test_arrays.h"

namespace esp::kernel {
namespace {

struct Case {
  Case(int64_t num_rows, int64_t num_classes, int64_t row_stride, DType type)
      : rows(num_rows),
        classes(num_classes),
        stride(row_stride),
        dtype(type),
        logits(Array::random(num_rows * row_stride, type, 1, 12)),
        losses(num_rows, accumulator_of(type)),
        lse(num_rows, accumulator_of(type)) {
    for (int64_t r = 0; r < rows; ++r)  // every fourth row is ignored
      targets.push_back(r % 4 == 3 ? -1 - static_cast<int32_t>(r) * 33
                                   : static_cast<int32_t>((r * 7919 + 1) % classes));
  }
  void forward(const device::Stream& stream) {
    cross_entropy_forward(losses.data(), lse.data(), logits.data(), targets.data(), rows, classes, stride, dtype,
                          stream);
  }
  double loss(const device::Stream& stream) {
    forward(stream);
    double total = 0;
    for (int64_t r = 0; r < rows; ++r) total += losses[r];
    return total;
  }

  int64_t rows, classes, stride;
  DType dtype;
  Array logits, losses, lse;
  std::vector<int32_t> targets;
};

constexpr double kScale = 0.37;
// Tolerance of losses, in units in the last place (ulp). exp magnifies the rounding error of its argument, which is
// 24 · 2^-24 for logits up to 12.
constexpr double kPlaces = 60;
// Tolerance of gradients, in units in the last place (ulp) of kScale. lse is up to 20 and has a rounding error of
// 2^-20.
constexpr double kGradientPlaces = 16;

template <typename F>
void on_every_case(F f) {
  for_each_target([&](const std::string& target) {
    for (DType dtype : kFloating)
      for (int64_t rows : {1, 6, 17})
        for (auto [classes, stride] :
             {std::pair<int64_t, int64_t>{1, 1}, {5, 9}, {64, 64}, {2049, 2052}, {6001, 6001}}) {
          Case it(rows, classes, stride, dtype);
          f(it, fmt::format("{} {} {}x{}", target, name_of(dtype), rows, classes));
        }
  });
}

TEST(CrossEntropy, LossesAndGradientsMatchRef) {
  const Threads pair(2);
  on_every_case([&](Case& it, const std::string& where) {
    Case want = it;
    it.forward(pair);
    ref::cross_entropy_forward(want.losses.data(), want.lse.data(), want.logits.data(), want.targets.data(), want.rows,
                               want.classes, want.stride, want.dtype);
    expect_near(it.losses, want.losses, kPlaces, 1, where);
    expect_near(it.lse, want.lse, kPlaces, 1, where);
    EXPECT_TRUE(it.logits.same_bits(want.logits)) << where << ": forward changed the logits";
    cross_entropy_backward(it.logits.data(), it.lse.data(), it.targets.data(), kScale, it.rows, it.classes, it.stride,
                           it.dtype, pair);
    ref::cross_entropy_backward(want.logits.data(), want.lse.data(), want.targets.data(), kScale, want.rows,
                                want.classes, want.stride, want.dtype);
    expect_near(it.logits, want.logits, kGradientPlaces, kScale, where);
  });
}

TEST(CrossEntropy, FusedMatchesForwardThenBackward) {
  const Threads pair(2);
  on_every_case([&](Case& it, const std::string& where) {
    Case want = it;
    want.forward(pair);
    ref::cross_entropy_backward(want.logits.data(), want.lse.data(), want.targets.data(), kScale, want.rows,
                                want.classes, want.stride, want.dtype);
    cross_entropy_fused(it.losses.data(), it.logits.data(), it.targets.data(), kScale, it.rows, it.classes, it.stride,
                        it.dtype, pair);
    EXPECT_TRUE(it.losses.same_bits(want.losses)) << where;
    expect_near(it.logits, want.logits, kGradientPlaces, kScale, where);
  });
}

TEST(CrossEntropy, GradientMatchesFiniteDifferences) {
  const Threads alone(1);
  Case it(5, 23, 25, DType::f64);
  it.logits = Array::random(it.rows * it.stride, DType::f64, 9, 2);
  Case gradient = it;
  cross_entropy_fused(gradient.losses.data(), gradient.logits.data(), it.targets.data(), 1, it.rows, it.classes,
                      it.stride, it.dtype, alone);
  // The padding between the last class and the end of a row is not written and has no gradient.
  for (int64_t r = 0; r < it.rows; ++r)
    for (int64_t c = it.classes; c < it.stride; ++c) {
      EXPECT_EQ(gradient.logits[r * it.stride + c], it.logits[r * it.stride + c]);
      gradient.logits.set(r * it.stride + c, 0);
    }
  expect_gradient(
      it.logits, gradient.logits, [&] { return it.loss(alone); }, "logits");
}

TEST(CrossEntropy, LossOfEqualLogitsIsLogOfNumClasses) {
  const Threads alone(1);
  for (DType dtype : kFloating) {
    Case it(1, 50257, 50257, dtype);
    it.logits.fill([](int64_t) { return -7.5; });
    it.forward(alone);
    EXPECT_NEAR(it.losses[0], std::log(50257.0), 2e-6) << name_of(dtype);
  }
}

TEST(CrossEntropy, IgnoredRowsHaveZeroLoss) {
  const Threads alone(1);
  Case it(4, 10, 10, DType::f32);
  it.logits.set(35, std::numeric_limits<double>::quiet_NaN());  // a NaN in an ignored row has no effect
  cross_entropy_fused(it.losses.data(), it.logits.data(), it.targets.data(), 1, 4, 10, 10, DType::f32, alone);
  EXPECT_EQ(it.losses[3], 0);
  for (int64_t c = 30; c < 40; ++c) EXPECT_EQ(it.logits[c], 0);
}

TEST(CrossEntropy, ThrowsOnCallingThreadWhenTargetIsOutOfRange) {
  Case it(3, 10, 10, DType::f32);
  it.targets[2] = 10;
  EXPECT_ANY_THROW(it.forward(Threads(2)));
}

TEST(CrossEntropy, GradientRowsSumToZero) {
  const Threads alone(1);
  Case it(3, 1000, 1000, DType::f32);
  cross_entropy_fused(it.losses.data(), it.logits.data(), it.targets.data(), 1, 3, 1000, 1000, DType::f32, alone);
  for (int64_t r = 0; r < 3; ++r) {
    double total = 0;
    for (int64_t c = 0; c < 1000; ++c) total += it.logits[r * 1000 + c];
    EXPECT_NEAR(total, 0, 1e-6);
  }
}

TEST(CrossEntropy, HandlesInfinitiesAndNans) {
  const Threads alone(1);
  const double inf = std::numeric_limits<double>::infinity();
  for_each_target([&](const std::string& target) {
    for (DType dtype : kFloating) {
      Case it(3, 5000, 5000, dtype);
      it.targets = {4999, 4999, 4999};
      // The first blocks of a row contain only -inf
      it.logits.fill([&](int64_t i) { return i % 5000 < 4998 ? -inf : 1.5; });
      it.logits.set(5000 + 3, std::nan(""));  // a NaN in a block of -inf
      it.logits.set(10000 + 77, inf);
      it.forward(alone);
      const std::string where = fmt::format("{} {}", target, name_of(dtype));
      EXPECT_NEAR(it.losses[0], std::log(2.0), 1e-6) << where;
      EXPECT_TRUE(std::isnan(it.losses[1])) << where;
      EXPECT_TRUE(std::isnan(it.losses[2])) << where;
    }
  });
}

TEST(Softmax, MatchesRefInPlaceAndSumsToOne) {
  const Threads pair(2);
  for_each_target([&](const std::string& target) {
    for (DType dtype : kFloating)
      for (int64_t rows : {1, 9})
        for (int64_t cols : {1, 17, 300, 5003}) {
          const std::string where = fmt::format("{} {} {}x{}", target, name_of(dtype), rows, cols);
          Array x = Array::random(rows * cols, dtype, 3, 12), y(rows * cols, dtype), want = y;
          softmax_forward(y.data(), x.data(), rows, cols, dtype, pair);
          ref::softmax_forward(want.data(), x.data(), rows, cols, dtype);
          expect_near(y, want, kPlaces, 0, where);
          softmax_forward(x.data(), x.data(), rows, cols, dtype, pair);
          EXPECT_TRUE(x.same_bits(y)) << where;
          for (int64_t r = 0; r < rows; ++r) {
            double total = 0;
            for (int64_t c = 0; c < cols; ++c) total += y[r * cols + c];
            EXPECT_NEAR(total, 1, dtype == DType::bf16 ? 4e-3 : dtype == DType::f16 ? 1e-3 : 1e-6) << where;
          }
        }
  });
}

TEST(CrossEntropy, ResultsAreBitIdenticalForAnyNumberOfThreads) {
  Case one(29, 3001, 3001, DType::f32), three = one;
  cross_entropy_fused(one.losses.data(), one.logits.data(), one.targets.data(), kScale, 29, 3001, 3001, DType::f32,
                      Threads(1));
  cross_entropy_fused(three.losses.data(), three.logits.data(), three.targets.data(), kScale, 29, 3001, 3001,
                      DType::f32, Threads(3));
  EXPECT_TRUE(one.losses.same_bits(three.losses));
  EXPECT_TRUE(one.logits.same_bits(three.logits));
}

}  // namespace
}  // namespace esp::kernel
