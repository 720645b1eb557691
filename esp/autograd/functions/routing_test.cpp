#include "esp/autograd/functions/routing.h"

#include <gtest/gtest.h>

#include "esp/autograd/functions/experts.h"
#include "esp/autograd/functions/linear.h"
#include "esp/autograd/testing.h"

namespace esp::autograd {
namespace {

using tensor::Tensor;

Tensor loads_of(const TapeFixture& rig, const Tensor& choices, const TokenRows& rows, const RouterOptions& o) {
  const Tensor loads =
      tensor::empty(rig.context, {rows.sequences, o.num_experts}, DType::i64, device::MemoryCategory::other);
  kernel::count_choices(loads.as<int64_t>(), choices.as<const int32_t>(), rows.sequences, rows.length * o.num_chosen,
                        o.num_experts, rig.context.stream);
  return loads;
}

TEST(Route, GateGradientsMatchFiniteDifferences) {
  for (bool normalise : {false, true}) {
    TapeFixture rig;
    Weight w;
    rig.fill(w, {6, 5}, 1);
    const TokenRows rows{2, 7, {}};
    const RouterOptions options{5, 2, normalise, 0, 0, 0};
    const Function f = [&](Tape& tape, const std::vector<Variable>& in) {
      return std::vector<Variable>{route(tape, in[0], w, rows, options).gates};
    };
    EXPECT_LT(max_gradient_error(rig, f, {rig.random({2, 7, 6}, 2)}, {&w}), 1e-8);
  }
}

// Backward adds the gradients of the auxiliary losses without a seed. The test gives the gates a zero gradient, so x
// and W get only the gradients of these losses.
TEST(Route, AuxiliaryLossGradientsMatchFiniteDifferences) {
  TapeFixture rig;
  Weight w;
  rig.fill(w, {6, 5}, 1);
  const Tensor x = rig.random({2, 7, 6}, 2);
  const TokenRows rows{2, 7, {}};
  const RouterOptions options{5, 2, true, 0.7, 0.3, 0.1};
  const auto losses = [&](Tape& tape, const Variable& in, Variable* gates) {
    const RouterOutput routed = route(tape, in, w, rows, options);
    kernel::RouteSums sums;
    compute_router_losses(rig.context, routed, rows, loads_of(rig, routed.choices, rows, options), options, &sums);
    if (gates) *gates = routed.gates;
    return options.scale * (options.aux * sums.balance + options.z * sums.z);
  };
  const Variable leaf = rig.tape.leaf(x);
  Variable gates;
  losses(rig.tape, leaf, &gates);
  rig.tape.seed(gates, tensor::zeros(rig.context, gates.shape(), DType::f64, device::MemoryCategory::other));
  rig.tape.backward();
  const Tensor dx = rig.tape.take_gradient(leaf);
  const auto value = [&] {
    const NoGradGuard quiet(rig.tape);
    return losses(rig.tape, x, nullptr);
  };
  EXPECT_LT(distance(dx.span<double>(), differences(x, value)), 1e-7);
  EXPECT_LT(distance(w.grad.span<double>(), differences(w.value, value)), 1e-7);
}

TEST(Route, LoadBalancingLossIsOneForEqualLoadsAndNumExpertsForOneExpert) {
  TapeFixture rig;
  const RouterOptions options{4, 1, false, 1, 0, 1};
  const TokenRows rows{1, 8, {}};
  Weight w;
  rig.fill(w, {4, 4}, 1);
  std::fill_n(w.value.as<double>(), 16, 0.0);
  Tensor x = rig.random({1, 8, 4}, 1);
  const auto of = [&] {
    const RouterOutput routed = route(rig.tape, x, w, rows, options);
    kernel::RouteSums sums;
    compute_router_losses(rig.context, routed, rows, loads_of(rig, routed.choices, rows, options), options, &sums);
    return sums.balance / 8;
  };
  EXPECT_DOUBLE_EQ(of(), 1);  // with equal probabilities, the loss is 1 for any loads
  for (int64_t i = 0; i < 4; ++i) w.value.as<double>()[i * 4 + i] = 50;
  std::fill_n(x.as<double>(), 32, 0.0);
  for (int64_t t = 0; t < 8; ++t) x.as<double>()[t * 4 + t % 4] = 1;
  EXPECT_NEAR(of(), 1, 1e-12);
  for (int64_t t = 0; t < 8; ++t) std::fill_n(x.as<double>() + t * 4, 4, 0.0), x.as<double>()[t * 4 + 2] = 1;
  EXPECT_NEAR(of(), 4, 1e-12);
  rig.tape.clear();
}

TEST(PermuteRows, GradientsMatchFiniteDifferences) {
  TapeFixture rig;
  const Tensor kept = rig.ids({5, 2}, {2, 0, 2, 1, -1, 2, 0, -1, -1, -1});
  const ExpertPermutation permutation = sort_rows_by_expert(rig.context, kept, 3);
  EXPECT_EQ(permutation.sources.count(), 6);
  const Function f = [&](Tape& tape, const std::vector<Variable>& in) {
    return std::vector<Variable>{
        unpermute_rows(tape, permute_rows(tape, in[0], permutation), in[1], permutation, {5, 3})};
  };
  EXPECT_LT(max_gradient_error(rig, f, {rig.random({5, 3}, 1), rig.random({5, 2}, 2)}, {}), 1e-8);
}

struct Experts {
  Weight weights[12];
  ExpertSet set;
  std::vector<Weight*> all;

  Experts(TapeFixture& rig, bool gated, bool bias) {
    set.gated = gated;
    set.activation = gated ? kernel::Activation::silu : kernel::Activation::gelu;
    for (size_t e = 0; e < 3; ++e) {
      Weight* w = weights + e * 4;
      rig.fill(w[0], {4, gated ? 10 : 5}, 10 + e);
      rig.fill(w[1], {gated ? 10 : 5}, 20 + e);
      rig.fill(w[2], {5, 4}, 30 + e);
      rig.fill(w[3], {4}, 40 + e);
      set.add({w, bias ? w + 1 : nullptr, w + 2, bias ? w + 3 : nullptr});
    }
  }
};

TEST(ExpertRows, GradientsMatchFiniteDifferences) {
  for (bool gated : {false, true})
    for (bool bias : {false, true})
      for (bool keep : {false, true}) {
        TapeFixture rig;
        Experts experts(rig, gated, bias);
        const Tensor counts = tensor::empty(rig.context, {3}, DType::i64, device::MemoryCategory::other);
        const int64_t rows[] = {4, 0, 3};
        std::copy_n(rows, 3, counts.as<int64_t>());
        const Function f = [&](Tape& tape, const std::vector<Variable>& in) {
          return std::vector<Variable>{expert_rows(tape, in[0], counts, experts.set, keep)};
        };
        EXPECT_LT(max_gradient_error(rig, f, {rig.random({7, 4}, 2)}, experts.set.weights), 1e-8)
            << gated << bias << keep;
      }
}

TEST(ExpertRows, AreBitIdenticalToMlp) {
  for (DType dtype : {DType::f32, DType::bf16})
    for (bool gated : {false, true}) {
      TapeFixture rig;
      Weight w[4];
      rig.fill(w[0], {8, gated ? 32 : 16}, 1, 1, dtype);
      rig.fill(w[1], {gated ? 32 : 16}, 2, 1, dtype);
      rig.fill(w[2], {16, 8}, 3, 1, dtype);
      rig.fill(w[3], {8}, 4, 1, dtype);
      ExpertSet set;
      set.gated = gated;
      set.add({w, w + 1, w + 2, w + 3});
      const Tensor x = rig.random({9, 8}, 5, 1, dtype);
      const Tensor counts = tensor::empty(rig.context, {1}, DType::i64, device::MemoryCategory::other);
      *counts.as<int64_t>() = 9;
      const Variable mine = expert_rows(rig.tape, x, counts, set);
      const Variable plain = gated ? gated_mlp(rig.tape, x, w[0], w + 1, w[2], w + 3)
                                   : mlp(rig.tape, x, w[0], w + 1, set.activation, w[2], w + 3);
      EXPECT_EQ(std::memcmp(mine.value().data(), plain.value().data(), mine.value().bytes()), 0) << name_of(dtype);
      rig.tape.clear();
    }
}

TEST(ExpertRows, MarksEveryWeightReadyWhenExpertsHaveNoRows) {
  TapeFixture rig;
  Experts experts(rig, false, true);
  int ready = 0;
  for (Weight* w : experts.set.weights) w->on_ready = [&] { ++ready; };
  const Tensor counts = tensor::zeros(rig.context, {3}, DType::f64, device::MemoryCategory::other);
  const Tensor none = Tensor::borrow(counts.data(), {3}, DType::i64);
  const Variable x = rig.tape.leaf(rig.random({0, 4}, 1));
  const Variable y = expert_rows(rig.tape, x, none, experts.set);
  rig.tape.seed(y, rig.random({0, 4}, 2));
  rig.tape.backward();
  EXPECT_EQ(ready, 12);
  rig.tape.clear();
}

}  // namespace
}  // namespace esp::autograd
