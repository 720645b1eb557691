// Routing and combination of experts against the CPU's and ref.
#include "esp/kernel/cuda/gpu_for_tests.h"
#include "esp/kernel/routing.h"

namespace esp::kernel {
namespace {

class RoutingOnGpu : public GpuTest {};

TEST_F(RoutingOnGpu, ChoosesWhatTheCpuChooses) {
  const device::Stream cpu;
  for (DType dtype : {DType::f32, DType::f64})
    for (auto [rows, E, k] : {std::tuple<int64_t, int64_t, int64_t>{5, 4, 1}, {33, 8, 2}, {20, 64, 6}, {7, 100, 3}})
      for (bool normalise : {false, true}) {
        const RouteShape shape{rows, E, k, normalise};
        Array logits = Array::random(rows * E, dtype, 1, 3);
        for (int64_t e = 0; e < E; ++e) logits.set(e, 0.5);  // a row of equals
        Array p(rows * E, dtype), lse(rows, dtype), gates(rows * k, dtype), dlogits(rows * E, dtype);
        std::vector<int32_t> choices(static_cast<size_t>(rows * k)), got(choices);
        Double on_logits(*this, logits), on_p(*this, p), on_lse(*this, lse), on_gates(*this, gates),
            on_d(*this, dlogits);
        Numbers<int32_t> on_choices(*this, choices);
        route_forward(on_p, on_lse, on_choices, on_gates, on_logits, shape, dtype, stream);
        route_forward(p.data(), lse.data(), choices.data(), gates.data(), logits.data(), shape, dtype, cpu);
        EXPECT_TRUE(on_choices.copy.fetch(got.data()));
        EXPECT_EQ(got, choices);
        expect_near(on_p.fetch(), p, 16, 0.1, "probabilities");
        expect_near(on_lse.fetch(), lse, 16, 1, "lse");
        expect_near(on_gates.fetch(), gates, 16, 0.1, "gates");

        Array dgates = Array::random(rows * k, dtype, 2), slopes = Array::random(3 * E, dtype, 3);
        Double on_dgates(*this, dgates), on_slopes(*this, slopes), back_p(*this, p), back_lse(*this, lse);
        RouteLosses losses{slopes.data(), (rows + 2) / 3, nullptr, 0.01}, on = losses;
        on.slopes = static_cast<void*>(on_slopes);
        route_backward(on_d, on_dgates, back_p, back_lse, on_choices, on, shape, dtype, stream);
        route_backward(dlogits.data(), dgates.data(), p.data(), lse.data(), choices.data(), losses, shape, dtype, cpu);
        expect_near(on_d.fetch(), dlogits, 64, 1, "dlogits");
      }
}

TEST_F(RoutingOnGpu, CombinesRows) {
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
          Numbers<int32_t> on_places(*this, places);
          Double on_x(*this, x), on_gates(*this, gates), on_y(*this, y);
          combine_forward(on_y, on_x, with_gates ? static_cast<void*>(on_gates) : nullptr, on_places, accumulate, shape,
                          dtype, stream);
          ref::combine_forward(y.data(), x.data(), with_gates ? gates.data() : nullptr, places.data(), accumulate,
                               shape, dtype);
          expect_near(on_y.fetch(), y, 8, 1, "combined");
          Array dx(18 * dim, dtype), dgates(18, wide), dy = Array::random(9 * dim, dtype, 4);
          Double on_dx(*this, dx), on_dgates(*this, dgates), on_dy(*this, dy);
          combine_backward(on_dx, on_dgates, on_dy, on_x, on_gates, on_places, shape, dtype, stream);
          ref::combine_backward(dx.data(), dgates.data(), dy.data(), x.data(), gates.data(), places.data(), shape,
                                dtype);
          expect_near(on_dx.fetch(), dx, 4, 1, "dx");
          expect_near(on_dgates.fetch(), dgates, 64, 10, "dgates");
        }
}

}  // namespace
}  // namespace esp::kernel
