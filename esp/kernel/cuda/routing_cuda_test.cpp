// Compares MoE routing and the combination of expert outputs with the CPU kernels and the reference kernels (ref).
#include "esp/kernel/cuda/test_gpu.h"
#include "esp/kernel/routing.h"

namespace esp::kernel {
namespace {

class RoutingOnGpu : public GpuTest {};

TEST_F(RoutingOnGpu, RouteForwardAndBackwardMatchCpu) {
  const device::Stream cpu;
  for (DType dtype : {DType::f32, DType::f64})
    for (auto [rows, E, k] : {std::tuple<int64_t, int64_t, int64_t>{5, 4, 1}, {33, 8, 2}, {20, 64, 6}, {7, 100, 3}})
      for (bool normalise : {false, true}) {
        const RouteShape shape{rows, E, k, normalise};
        Array logits = Array::random(rows * E, dtype, 1, 3);
        for (int64_t e = 0; e < E; ++e) logits.set(e, 0.5);  // the first row has equal logits
        Array p(rows * E, dtype), lse(rows, dtype), gates(rows * k, dtype), dlogits(rows * E, dtype);
        std::vector<int32_t> choices(static_cast<size_t>(rows * k)), got(choices);
        GpuArray on_logits(*this, logits), on_p(*this, p), on_lse(*this, lse), on_gates(*this, gates),
            on_d(*this, dlogits);
        GpuVector<int32_t> on_choices(*this, choices);
        route_forward(on_p, on_lse, on_choices, on_gates, on_logits, shape, dtype, stream);
        route_forward(p.data(), lse.data(), choices.data(), gates.data(), logits.data(), shape, dtype, cpu);
        EXPECT_TRUE(on_choices.copy.fetch(got.data()));
        EXPECT_EQ(got, choices);
        expect_near(on_p.fetch(), p, 16, 0.1, "probabilities");
        expect_near(on_lse.fetch(), lse, 16, 1, "lse");
        expect_near(on_gates.fetch(), gates, 16, 0.1, "gates");

        Array dgates = Array::random(rows * k, dtype, 2), slopes = Array::random(3 * E, dtype, 3);
        GpuArray on_dgates(*this, dgates), on_slopes(*this, slopes), back_p(*this, p), back_lse(*this, lse);
        RouteLosses losses{slopes.data(), (rows + 2) / 3, nullptr, 0.01}, on = losses;
        on.slopes = static_cast<void*>(on_slopes);
        route_backward(on_d, on_dgates, back_p, back_lse, on_choices, on, shape, dtype, stream);
        route_backward(dlogits.data(), dgates.data(), p.data(), lse.data(), choices.data(), losses, shape, dtype, cpu);
        expect_near(on_d.fetch(), dlogits, 64, 1, "dlogits");
      }
}

std::vector<int32_t> random_choices(int64_t rows, int64_t k, int64_t E) {
  std::vector<int32_t> choices;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < k; ++j)  // the choices of a row are distinct, and some experts are more frequent
      choices.push_back(static_cast<int32_t>((r * r / 7 + 2 * j) % E));
  return choices;
}

TEST_F(RoutingOnGpu, ExpertOrderMatchesCpu) {
  const device::Stream cpu;
  for (auto [groups, tokens, E, k] : {std::tuple<int64_t, int64_t, int64_t, int64_t>{1, 1, 1, 1},
                                      {2, 3, 3, 2},
                                      {3, 100, 8, 2},
                                      {2, 1500, 5, 2},
                                      {1, 5000, 64, 4}}) {
    const int64_t rows = groups * tokens;
    const auto choices = random_choices(rows, k, E);
    GpuVector<int32_t> on_choices(*this, choices);
    std::vector<int64_t> loads(static_cast<size_t>(groups * E), -1), got_loads(loads);
    GpuVector<int64_t> on_loads(*this, loads);
    count_choices(loads.data(), choices.data(), groups, tokens * k, E, cpu);
    count_choices(on_loads, on_choices, groups, tokens * k, E, stream);
    EXPECT_TRUE(on_loads.copy.fetch(got_loads.data()));
    EXPECT_EQ(got_loads, loads);
    for (int64_t capacity : {int64_t{0}, tokens * k / E / 2 + 1, tokens * k}) {
      std::vector<int32_t> kept(choices.size(), -5), got(kept), places(kept), sources(kept);
      GpuVector<int32_t> on_kept(*this, kept), on_places(*this, kept), on_sources(*this, kept);
      drop_overflow(kept.data(), choices.data(), groups, tokens, k, E, capacity, cpu);
      drop_overflow(on_kept, on_choices, groups, tokens, k, E, capacity, stream);
      EXPECT_TRUE(on_kept.copy.fetch(got.data()));
      EXPECT_EQ(got, kept) << groups << " groups of " << tokens << ", room for " << capacity;
      std::vector<int64_t> counts(static_cast<size_t>(E)), got_counts(counts);
      const int64_t M = order_by_expert(places.data(), sources.data(), counts.data(), kept.data(), rows, k, E, cpu);
      EXPECT_EQ(order_by_expert(on_places, on_sources, got_counts.data(), on_kept, rows, k, E, stream), M);
      EXPECT_EQ(got_counts, counts);
      EXPECT_TRUE(on_places.copy.fetch(got.data()));
      EXPECT_EQ(got, places);
      EXPECT_TRUE(on_sources.copy.fetch(got.data()));
      EXPECT_EQ(got, sources);
    }
  }
}

TEST_F(RoutingOnGpu, GatherAndScatterOfChoicesMatchCpu) {
  const device::Stream cpu;
  const std::vector<int32_t> numbers = {4, 0, 7, 2}, all = random_choices(9, 3, 11);
  std::vector<int32_t> here(12, -5), got(here), back(27, 0), got_back(back);
  GpuVector<int32_t> on_numbers(*this, numbers), on_all(*this, all), on_here(*this, here), on_back(*this, back);
  gather_choices(here.data(), all.data(), numbers.data(), 4, 3, cpu);
  gather_choices(on_here, on_all, on_numbers, 4, 3, stream);
  EXPECT_TRUE(on_here.copy.fetch(got.data()));
  EXPECT_EQ(got, here);
  scatter_choices(back.data(), here.data(), numbers.data(), 4, 3, cpu);
  scatter_choices(on_back, on_here, on_numbers, 4, 3, stream);
  EXPECT_TRUE(on_back.copy.fetch(got_back.data()));
  EXPECT_EQ(got_back, back);
}

TEST_F(RoutingOnGpu, AuxiliaryLossesMatchCpu) {
  const device::Stream cpu;
  for (DType dtype : {DType::f32, DType::f64})
    for (bool numbered : {false, true}) {
      const RouteShape shape{600, 8, 2, false};
      std::vector<int64_t> loads;
      for (int64_t i = 0; i < 3 * 8; ++i) loads.push_back(i * i % 70);
      std::vector<int32_t> numbers;
      for (int32_t r = 0; r < 600; ++r) numbers.push_back(599 - r);
      const Array p = Array::random(600 * 8, dtype, 1), lse = Array::random(600, dtype, 2);
      Array slopes(3 * 8, dtype);
      GpuVector<int64_t> on_loads(*this, loads);
      GpuVector<int32_t> on_numbers(*this, numbers);
      GpuArray on_p(*this, p), on_lse(*this, lse), on_slopes(*this, slopes);
      RouteLosses losses{nullptr, 200, numbered ? numbers.data() : nullptr, 0}, on = losses;
      if (numbered) on.numbers = on_numbers;
      RouteSums want, got;
      route_losses(slopes.data(), &want, p.data(), lse.data(), loads.data(), 3, 0.3, losses, shape, dtype, cpu);
      route_losses(on_slopes, &got, on_p, on_lse, on_loads, 3, 0.3, on, shape, dtype, stream);
      EXPECT_NEAR(got.balance, want.balance, 1e-9 * std::abs(want.balance) + 1e-9);
      EXPECT_NEAR(got.z, want.z, 1e-9 * want.z);
      expect_near(on_slopes.fetch(), slopes, 2, 1, "slopes");
    }
}

TEST_F(RoutingOnGpu, CombineMatchesRef) {
  for (DType dtype : kFloating)
    for (int64_t dim : {7, 64, 200})
      for (bool with_gates : {false, true})
        for (bool accumulate : {false, true}) {
          const CombineShape shape{9, 2, dim};
          const DType wide = accumulator_of(dtype);
          std::vector<int32_t> places;
          for (int i = 0; i < 18; ++i) places.push_back(i % 5 == 3 ? -1 : 17 - i);
          Array x = Array::random(18 * dim, dtype, 1), gates = Array::random(18, wide, 2),
                y = Array::random(9 * dim, dtype, 3);
          GpuVector<int32_t> on_places(*this, places);
          GpuArray on_x(*this, x), on_gates(*this, gates), on_y(*this, y);
          combine_forward(on_y, on_x, with_gates ? static_cast<void*>(on_gates) : nullptr, on_places, accumulate, shape,
                          dtype, stream);
          ref::combine_forward(y.data(), x.data(), with_gates ? gates.data() : nullptr, places.data(), accumulate,
                               shape, dtype);
          expect_near(on_y.fetch(), y, 8, 1, "combined");
          Array dx(18 * dim, dtype), dgates(18, wide), dy = Array::random(9 * dim, dtype, 4);
          GpuArray on_dx(*this, dx), on_dgates(*this, dgates), on_dy(*this, dy);
          combine_backward(on_dx, on_dgates, on_dy, on_x, on_gates, on_places, shape, dtype, stream);
          ref::combine_backward(dx.data(), dgates.data(), dy.data(), x.data(), gates.data(), places.data(), shape,
                                dtype);
          expect_near(on_dx.fetch(), dx, 4, 1, "dx");
          expect_near(on_dgates.fetch(), dgates, 64, 10, "dgates");
        }
}

}  // namespace
}  // namespace esp::kernel
