#include "esp/autograd/functions/cross_entropy.h"

#include <gtest/gtest.h>

#include "esp/autograd/functions/linear.h"
#include "esp/autograd/testing.h"

namespace esp::autograd {
namespace {

constexpr double kScale = 0.25;

// Largest relative distance between the gradients of kScale·loss and their finite differences, over inputs and weights.
double worst(TapeFixture& rig, const std::function<Loss(const Variable&)>& f, const tensor::Tensor& x,
             const std::vector<Weight*>& weights) {
  const auto value = [&] {
    const NoGradGuard quiet(rig.tape);
    return kScale * tensor::item(f(Variable(x)).total.value());
  };
  for (Weight* w : weights) kernel::fill(w->grad.data(), 0, w->grad.count(), DType::f64, rig.context.stream);
  const Variable leaf = rig.tape.leaf(x);
  backward(rig.tape, f(leaf));
  double result = distance(rig.tape.take_gradient(leaf).span<double>(), differences(x, value));
  for (Weight* w : weights) result = std::max(result, distance(w->grad.span<double>(), differences(w->value, value)));
  rig.tape.clear();
  return result;
}

TEST(CrossEntropy, GradientsMatchFiniteDifferences) {
  TapeFixture rig;
  const tensor::Tensor targets = rig.ids({4}, {2, -1, 0, 6});
  const auto f = [&](const Variable& x) { return cross_entropy(rig.tape, x, targets, kScale); };
  EXPECT_LT(worst(rig, f, rig.random({4, 7}, 1), {}), 1e-6);
}

TEST(LinearCrossEntropy, GradientsMatchFiniteDifferences) {
  TapeFixture rig;
  Weight w, b;
  rig.fill(w, {7, 3}, 2);
  rig.fill(b, {7}, 3);
  const tensor::Tensor targets = rig.ids({2, 2}, {2, -1, 0, 6});
  const auto f = [&](const Variable& x) { return linear_cross_entropy(rig.tape, x, w, &b, targets, kScale); };
  EXPECT_LT(worst(rig, f, rig.random({2, 2, 3}, 1), {&w, &b}), 1e-6);
  const auto plain = [&](const Variable& x) { return linear_cross_entropy(rig.tape, x, w, nullptr, targets, kScale); };
  EXPECT_LT(worst(rig, plain, rig.random({2, 2, 3}, 1), {&w}), 1e-6);
}

TEST(LinearCrossEntropy, MatchesUnfusedLossOverManyBlocks) {
  TapeFixture rig;
  constexpr int64_t kRows = 300, kIn = 4, kClasses = 70'000;  // one block holds 64 rows of this width
  Weight w, w_t;
  rig.fill(w, {kClasses, kIn}, 2);
  rig.fill(w_t, {kIn, kClasses}, 2);
  for (int64_t c = 0; c < kClasses; ++c)
    for (int64_t i = 0; i < kIn; ++i) w_t.value.as<double>()[i * kClasses + c] = w.value.as<double>()[c * kIn + i];
  const tensor::Tensor x = rig.random({kRows, kIn}, 1);
  std::vector<int32_t> ids;
  for (int32_t r = 0; r < kRows; ++r) ids.push_back(r % 7 == 0 ? -1 : r * 211);
  const tensor::Tensor targets = rig.ids({kRows}, ids);

  const Variable a = rig.tape.leaf(x), b = rig.tape.leaf(x);
  const Loss fused = linear_cross_entropy(rig.tape, a, w, nullptr, targets, kScale);
  backward(rig.tape, fused);
  const Loss plain = cross_entropy(rig.tape, linear(rig.tape, b, w_t, nullptr), targets, kScale);
  backward(rig.tape, plain);
  EXPECT_NEAR(tensor::item(fused.total.value()) / tensor::item(plain.total.value()), 1, 1e-13);
  EXPECT_LT(distance(rig.tape.take_gradient(a).span<double>(), rig.tape.take_gradient(b).span<double>()), 1e-12);
  std::vector<double> turned(static_cast<size_t>(kIn * kClasses));
  for (int64_t c = 0; c < kClasses; ++c)
    for (int64_t i = 0; i < kIn; ++i)
      turned[static_cast<size_t>(c * kIn + i)] = w_t.grad.as<double>()[i * kClasses + c];
  EXPECT_LT(distance(w.grad.span<double>(), turned), 1e-12);
  rig.tape.clear();
}

}  // namespace
}  // namespace esp::autograd
