#include "esp/kernel/routing.h"

#include <algorithm>
#include <numeric>

#include "esp/kernel/test_arrays.h"

namespace esp::kernel {
namespace {

struct Routing {
  RouteShape shape;
  Array logits, p, lse, gates;
  std::vector<int32_t> choices;

  Routing(const RouteShape& s, DType dtype, uint64_t seed)
      : shape(s),
        logits(Array::random(s.rows * s.num_experts, dtype, seed, 3)),
        p(s.rows * s.num_experts, dtype),
        lse(s.rows, dtype),
        gates(s.rows * s.num_chosen, dtype),
        choices(static_cast<size_t>(s.rows * s.num_chosen)) {}
  void run(const device::Stream& stream) {
    route_forward(p.data(), lse.data(), choices.data(), gates.data(), logits.data(), shape, logits.dtype(), stream);
  }
};

TEST(Routing, ChoosesMostProbableExpertAndBreaksTiesByIndex) {
  const Threads pair(2);
  Routing r({2, 5, 3, false}, DType::f32, 1);
  const double scores[] = {1, 4, 4, 0, 4, 2, 2, 2, 2, 2};
  r.logits.fill([&](int64_t i) { return scores[i]; });
  r.run(pair);
  EXPECT_EQ(r.choices, (std::vector<int32_t>{1, 2, 4, 0, 1, 2}));
  for (int64_t j = 0; j < 3; ++j) EXPECT_NEAR(r.gates[3 + j], 0.2, 1e-7);
}

TEST(Routing, ChoicesMatchSortAndGatesSumToOne) {
  const Threads pair(2);
  for (DType dtype : {DType::f32, DType::f64}) {
    Routing r({700, 7, 3, true}, dtype, 2);
    r.run(pair);
    for (int64_t row = 0; row < r.shape.rows; ++row) {
      double sum = 0, gates = 0;
      std::vector<int32_t> order(7);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](int32_t a, int32_t b) { return r.logits[row * 7 + a] > r.logits[row * 7 + b]; });
      for (int64_t e = 0; e < 7; ++e) sum += r.p[row * 7 + e];
      for (int64_t j = 0; j < 3; ++j) {
        gates += r.gates[row * 3 + j];
        ASSERT_EQ(r.choices[static_cast<size_t>(row * 3 + j)], order[static_cast<size_t>(j)]) << row;
      }
      ASSERT_NEAR(sum, 1, 1e-6);
      ASSERT_NEAR(gates, 1, 1e-6);
    }
  }
}

TEST(Routing, ChoosesDistinctExpertsWhenLogitsAreNaN) {
  const Threads alone(1);
  Routing r({1, 3, 2, true}, DType::f32, 1);
  r.logits.fill([](int64_t) { return std::nan(""); });
  r.run(alone);
  EXPECT_EQ(r.choices, (std::vector<int32_t>{0, 1}));
}

TEST(Routing, GradientMatchesFiniteDifferences) {
  const Threads alone(1);
  for (bool normalise : {false, true}) {
    Routing r({6, 5, 2, normalise}, DType::f64, 5);
    r.run(alone);
    const auto before = r.choices;
    const Array probe = Array::random(12, DType::f64, 8), slopes = Array::random(10, DType::f64, 9);
    // rows 0, 2 and 4 have the numbers 0, 1 and 2, so they form the first group
    const std::vector<int32_t> numbers = {0, 5, 1, 4, 2, 3};
    constexpr double kZ = 0.3;
    Array gradient(30, DType::f64);
    route_backward(gradient.data(), probe.data(), r.p.data(), r.lse.data(), r.choices.data(),
                   {slopes.data(), 3, numbers.data(), kZ}, r.shape, DType::f64, alone);
    expect_gradient(
        r.logits, gradient,
        [&] {
          r.run(alone);
          EXPECT_EQ(r.choices, before);
          double loss = dot(r.gates, probe);
          for (int64_t i = 0; i < 30; ++i) loss += r.p[i] * slopes[numbers[static_cast<size_t>(i / 5)] / 3 * 5 + i % 5];
          for (int64_t i = 0; i < 6; ++i) loss += kZ * r.lse[i] * r.lse[i];
          return loss;
        },
        normalise ? "normalised" : "plain");
  }
}

TEST(Routing, FillsCapacityWithFirstChoicesBeforeSecondChoices) {
  // Two groups of three tokens with two choices each. The capacity of an expert is two rows per group.
  const std::vector<int32_t> choices = {0, 1, 1, 0, 0, 1, /**/ 2, 0, 2, 0, 2, 0};
  std::vector<int32_t> kept(choices.size());
  drop_overflow(kept.data(), choices.data(), 2, 3, 2, 3, 2, {});
  EXPECT_EQ(kept, (std::vector<int32_t>{0, 1, 1, -1, 0, -1, /**/ 2, 0, 2, 0, -1, -1}));
}

TEST(Routing, OrdersRowsByExpertThenToken) {
  const std::vector<int32_t> kept = {2, 0, -1, 2, 0, -1};
  std::vector<int32_t> places(6), sources(6, -7);
  std::vector<int64_t> counts(3);
  EXPECT_EQ(order_by_expert(places.data(), sources.data(), counts.data(), kept.data(), 3, 2, 3, {}), 4);
  EXPECT_EQ(places, (std::vector<int32_t>{2, 0, -1, 3, 1, -1}));
  EXPECT_EQ(sources, (std::vector<int32_t>{0, 2, 0, 1, -7, -7}));
  EXPECT_EQ(counts, (std::vector<int64_t>{2, 0, 2}));
}

TEST(Combine, ForwardAndBackwardMatchRef) {
  const Threads pair(2);
  for_each_target([&](const std::string& target) {
    for (DType dtype : kFloating)
      for (int64_t dim : {1, 30, 300})
        for (int64_t rows : {1, 90}) {
          constexpr int64_t kChosen = 3;
          const std::string where = fmt::format("{} {} {}x{}", target, name_of(dtype), rows, dim);
          std::vector<int32_t> places;
          int32_t next = 0;
          for (int64_t i = 0; i < rows * kChosen; ++i) places.push_back(i % 5 == 1 ? -1 : next++);
          const CombineShape shape{rows, kChosen, dim};
          const Array x = Array::random(next * dim, dtype, 1), dy = Array::random(rows * dim, dtype, 2);
          const Array gates = Array::random(rows * kChosen, accumulator_of(dtype), 3);
          for (const void* weights : {static_cast<const void*>(nullptr), gates.data()})
            for (bool accumulate : {false, true}) {
              Array y = Array::random(rows * dim, dtype, 4), want = y;
              combine_forward(y.data(), x.data(), weights, places.data(), accumulate, shape, dtype, pair);
              ref::combine_forward(want.data(), x.data(), weights, places.data(), accumulate, shape, dtype);
              expect_near(y, want, 8, 4, where);
            }
          Array dx(next * dim, dtype), dx_want = dx, dgates(rows * kChosen, accumulator_of(dtype)), dg_want = dgates;
          combine_backward(dx.data(), dgates.data(), dy.data(), x.data(), gates.data(), places.data(), shape, dtype,
                           pair);
          ref::combine_backward(dx_want.data(), dg_want.data(), dy.data(), x.data(), gates.data(), places.data(), shape,
                                dtype);
          expect_near(dx, dx_want, 8, 1, where);
          expect_near(dgates, dg_want, 64, static_cast<double>(dim), where);
        }
  });
}

TEST(Combine, DroppedRowsAreZero) {
  const Threads alone(1);
  const std::vector<int32_t> places = {-1, -1};
  Array y = Array::random(8, DType::f32, 1), x(8, DType::f32), gates(2, DType::f32);
  combine_forward(y.data(), x.data(), gates.data(), places.data(), false, {1, 2, 8}, DType::f32, alone);
  for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(y[i], 0);
}

}  // namespace
}  // namespace esp::kernel
