#include "esp/kernel/activation.h"

#include <limits>

#include "esp/base/error.h"
#include "esp/kernel/test_arrays.h"

namespace esp::kernel {
namespace {

constexpr Activation kAll[] = {Activation::none,     Activation::relu, Activation::gelu,
                               Activation::gelu_erf, Activation::silu, Activation::tanh};
constexpr int64_t kCounts[] = {0, 1, 7, 16, 33, 1000};
// Tolerance in units in the last place (ulp). gelu_erf is the least accurate function: far from zero it is a product of
// three approximations.
constexpr double kPlaces = 40;

TEST(Activation, ForwardMatchesRefInPlaceAndOutOfPlace) {
  const Threads alone(1);
  for_each_target([&](const std::string& target) {
    for (DType dtype : kFloating)
      for (Activation activation : kAll)
        for (int64_t count : kCounts) {
          const std::string where = fmt::format("{} {} {} of {}", target, name_of(activation), name_of(dtype), count);
          Array x = Array::random(count, dtype, 1, 6), y(count, dtype), want(count, dtype);
          ref::activation_forward(want.data(), x.data(), count, activation, dtype);
          activation_forward(y.data(), x.data(), count, activation, dtype, alone);
          expect_near(y, want, kPlaces, 0, where);
          activation_forward(x.data(), x.data(), count, activation, dtype, alone);
          EXPECT_TRUE(x.same_bits(y)) << where;
        }
  });
}

TEST(Activation, BackwardMatchesRefWhenOverwritingAndAccumulating) {
  const Threads alone(1);
  for_each_target([&](const std::string& target) {
    for (DType dtype : kFloating)
      for (Activation activation : kAll)
        for (bool accumulate : {false, true})
          for (int64_t count : kCounts) {
            const std::string where = fmt::format("{} {} {} of {}", target, name_of(activation), name_of(dtype), count);
            const Array x = Array::random(count, dtype, 1, 6);
            Array dy = Array::random(count, dtype, 2), dx = Array::random(count, dtype, 3), want = dx;
            ref::activation_backward(want.data(), dy.data(), x.data(), count, activation, accumulate, dtype);
            activation_backward(dx.data(), dy.data(), x.data(), count, activation, accumulate, dtype, alone);
            expect_near(dx, want, kPlaces, 1, where);
            if (accumulate) continue;
            activation_backward(dy.data(), dy.data(), x.data(), count, activation, false, dtype, alone);
            EXPECT_TRUE(dy.same_bits(dx)) << where << " in place";
          }
  });
}

TEST(Activation, DerivativesMatchFiniteDifferences) {
  const Threads alone(1);
  constexpr int64_t kCount = 61;
  for (Activation activation : kAll) {
    Array x = Array::random(kCount, DType::f64, 4, 4), y(kCount, DType::f64), dx(kCount, DType::f64);
    const Array dy = Array::random(kCount, DType::f64, 5);
    activation_backward(dx.data(), dy.data(), x.data(), kCount, activation, false, DType::f64, alone);
    auto loss = [&] {
      activation_forward(y.data(), x.data(), kCount, activation, DType::f64, alone);
      return dot(y, dy);
    };
    expect_gradient(x, dx, loss, std::string(name_of(activation)));
  }
}

TEST(Activation, MatchesKnownValues) {
  const Threads alone(1);
  auto at = [&](Activation activation, double value) {
    Array x(1, DType::f64);
    x.set(0, value);
    activation_forward(x.data(), x.data(), 1, activation, DType::f64, alone);
    return x[0];
  };
  EXPECT_NEAR(at(Activation::gelu, 1), 0.84119199060827670, 1e-14);      // value of the tanh form
  EXPECT_NEAR(at(Activation::gelu_erf, 1), 0.84134474606854293, 1e-14);  // x·cdf(x) at x = 1
  EXPECT_NEAR(at(Activation::silu, 1), 0.73105857863000488, 1e-14);
  EXPECT_NEAR(at(Activation::tanh, 1), 0.76159415595576489, 1e-14);
  EXPECT_EQ(at(Activation::relu, -3), 0);
  EXPECT_EQ(at(Activation::relu, 3), 3);
}

TEST(Activation, PropagatesNanAndSaturatesLargeValues) {
  const Threads alone(1);
  for_each_target([&](const std::string& target) {
    for (DType dtype : kFloating)
      for (Activation activation : kAll) {
        Array x(3, dtype);
        x.set(0, std::numeric_limits<double>::quiet_NaN());
        x.set(1, 3e4);
        x.set(2, -3e4);
        const double large = x[1];
        activation_forward(x.data(), x.data(), 3, activation, dtype, alone);
        const std::string where = fmt::format("{} {} {}", target, name_of(activation), name_of(dtype));
        EXPECT_TRUE(std::isnan(x[0])) << where;
        EXPECT_EQ(x[1], activation == Activation::tanh ? 1 : large) << where;
        if (activation != Activation::none) {
          EXPECT_EQ(x[2], activation == Activation::tanh ? -1 : 0) << where;
        }
      }
  });
}

TEST(Activation, ResultsAreBitIdenticalForAnyNumberOfThreads) {
  constexpr int64_t kCount = 50001;
  const Array x = Array::random(kCount, DType::f32, 6, 5);
  Array one(kCount, DType::f32), three = one;
  activation_forward(one.data(), x.data(), kCount, Activation::gelu, DType::f32, Threads(1));
  activation_forward(three.data(), x.data(), kCount, Activation::gelu, DType::f32, Threads(3));
  EXPECT_TRUE(one.same_bits(three));
}

TEST(Swiglu, ForwardAndBackwardMatchRef) {
  const Threads pair(2);
  for_each_target([&](const std::string& target) {
    for (DType dtype : kFloating)
      for (int64_t rows : {1, 3, 40})
        for (int64_t width : {1, 31, 64, 700}) {
          const std::string where = fmt::format("{} {} {}x{}", target, name_of(dtype), rows, width);
          const Array x = Array::random(rows * 2 * width, dtype, 1, 5), dy = Array::random(rows * width, dtype, 2);
          Array y(rows * width, dtype), want = y, dx(rows * 2 * width, dtype), dwant = dx;
          swiglu_forward(y.data(), x.data(), rows, width, dtype, pair);
          ref::swiglu_forward(want.data(), x.data(), rows, width, dtype);
          expect_near(y, want, kPlaces, 0, where);
          swiglu_backward(dx.data(), dy.data(), x.data(), rows, width, dtype, pair);
          ref::swiglu_backward(dwant.data(), dy.data(), x.data(), rows, width, dtype);
          expect_near(dx, dwant, kPlaces, 1, where);
        }
  });
}

TEST(Swiglu, GradientMatchesFiniteDifferences) {
  const Threads alone(1);
  constexpr int64_t kRows = 3, kWidth = 9;
  Array x = Array::random(kRows * 2 * kWidth, DType::f64, 7, 3), y(kRows * kWidth, DType::f64), dx = x;
  const Array dy = Array::random(kRows * kWidth, DType::f64, 8);
  swiglu_backward(dx.data(), dy.data(), x.data(), kRows, kWidth, DType::f64, alone);
  auto loss = [&] {
    swiglu_forward(y.data(), x.data(), kRows, kWidth, DType::f64, alone);
    return dot(y, dy);
  };
  expect_gradient(x, dx, loss, "swiglu");
}

TEST(ActivationNames, NamesRoundTripAndUnknownNameErrorListsThem) {
  for (Activation activation : kAll) EXPECT_EQ(parse_activation(name_of(activation)), activation);
  try {
    parse_activation("swish");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("silu"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace esp::kernel
