#include "esp/kernel/softmax.h"

#include "esp/kernel/test_arrays.h"

namespace esp::kernel {
namespace {

SoftmaxShape shape_of(int64_t rows, int64_t cols, int64_t period, int64_t length, bool causal) {
  SoftmaxShape shape;
  shape.rows = rows;
  shape.cols = cols;
  shape.period = period;
  shape.length = length;
  shape.causal = causal;
  return shape;
}

const SoftmaxShape kShapes[] = {shape_of(1, 1, 0, 1, false), shape_of(6, 5, 3, 5, true),
                                shape_of(300, 61, 60, 47, true), shape_of(7, 33, 0, 0, false),
                                shape_of(64, 129, 64, 200, false)};

TEST(Softmax, MatchesRefInEveryType) {
  const Threads pair(2);
  for (DType dtype : kFloating)
    for (const SoftmaxShape& shape : kShapes) {
      const std::string where = fmt::format("{} {}x{}", name_of(dtype), shape.rows, shape.cols);
      Array got = Array::random(shape.rows * shape.cols, dtype, 3, 4), want = got;
      softmax_forward(got.data(), shape, dtype, pair);
      ref::softmax_forward(want.data(), shape, dtype);
      expect_near(got, want, 16, 0, where);
      Array d = Array::random(shape.rows * shape.cols, dtype, 5), d_want = d;
      softmax_backward(d.data(), want.data(), shape, dtype, pair);
      ref::softmax_backward(d_want.data(), want.data(), shape, dtype);
      expect_near(d, d_want, 64, 1, where);
    }
}

TEST(Softmax, RowsSumToOneAndMaskFutureColumns) {
  const Threads pair(2);
  const SoftmaxShape shape = shape_of(8, 4, 4, 3, true);
  // scores so large that exp overflows unless the row maximum is subtracted
  Array p = Array::random(32, DType::f64, 9, 500);
  softmax_forward(p.data(), shape, DType::f64, pair);
  for (int64_t r = 0; r < 8; ++r) {
    double sum = 0;
    for (int64_t j = 0; j < 4; ++j) {
      if (j > r % 4 || j >= 3) {
        EXPECT_EQ(p[r * 4 + j], 0) << r << ' ' << j;
      }
      sum += p[r * 4 + j];
    }
    EXPECT_NEAR(sum, 1, 1e-14) << r;
  }
}

TEST(Softmax, GradientMatchesFiniteDifferences) {
  const Threads pair(2);
  const SoftmaxShape shape = shape_of(6, 5, 3, 4, true);
  Array scores = Array::random(30, DType::f64, 11), seed = Array::random(30, DType::f64, 12);
  const auto forward = [&] {
    Array p = scores;
    softmax_forward(p.data(), shape, DType::f64, pair);
    return p;
  };
  Array d = seed;
  softmax_backward(d.data(), forward().data(), shape, DType::f64, pair);
  expect_gradient(
      scores, d, [&] { return dot(forward(), seed); }, "softmax");
}

TEST(Masks, KeepAndScaleElements) {
  const Threads pair(2);
  for (DType dtype : kFloating) {
    const int64_t n = 20011;
    Array drawn = Array::random(n, dtype, 4);
    drawn.fill([](int64_t i) { return i % 3 == 0 ? 0.0 : i % 2 ? -1.25 : 1e-3; });
    std::vector<uint8_t> mask(static_cast<size_t>(n), 7);
    nonzero_mask(mask.data(), drawn.data(), n, dtype, pair);
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(mask[static_cast<size_t>(i)], i % 3 != 0) << i;
    Array x = Array::random(n, dtype, 6), y = x;
    apply_mask(y.data(), y.data(), mask.data(), 2, n, dtype, pair);
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(y[i], i % 3 ? 2 * x[i] : 0) << i;
    EXPECT_TRUE(y.intact());
  }
}

}  // namespace
}  // namespace esp::kernel
