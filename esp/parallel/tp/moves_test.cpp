// A product that is autograd's own between the moves (as those in 8 bits are) beside the divided one that overlaps
// them.
#include "esp/parallel/tp/moves.h"

#include <gtest/gtest.h>

#include "esp/autograd/functions/linear.h"
#include "esp/autograd/testing.h"
#include "esp/parallel/testing.h"
#include "esp/parallel/tp/perceptron.h"

namespace esp::parallel {
namespace {

using autograd::Variable;
using nn::Cut;
using nn::Init;
using tensor::Tensor;

constexpr int64_t B = 2, T = 12, kDim = 5, kHidden = 24;

std::vector<double> values(const Tensor& x) {
  return {x.span<double>().begin(), x.span<double>().end()};
}

struct Outcome {
  std::vector<double> y, dx, gradients;
};

template <typename F>
Outcome run(Holder& holder, bool gated, int64_t rows, F perceptron) {
  nn::ParameterList list(holder.shares());
  const int64_t wide = gated ? 2 * kHidden : kHidden;
  const std::vector<int64_t> halves = gated ? std::vector<int64_t>{kHidden, kHidden} : std::vector<int64_t>{};
  list.begin_unit("all");
  list.add("w1", {kDim, wide}, Init::normal(1), true, Cut{1, halves, 1});
  list.add("b1", {wide}, Init::normal(1), false, Cut{0, halves, 1});
  list.add("w2", {kHidden, kDim}, Init::normal(1), true, Cut::along(0));
  list.materialize(holder.context, DType::f64, true);
  list.initialise(9, holder.context.stream);
  Tensor x = tensor::empty(holder.context, {1, rows, kDim}, DType::f64, device::MemoryCategory::other),
         dy = tensor::empty(holder.context, {1, rows, kDim}, DType::f64, device::MemoryCategory::other);
  const auto first = static_cast<uint64_t>(holder.mesh.here().tp * rows * kDim * (rows < B * T));
  kernel::fill_normal(x.data(), 0, 1, 1, 0, first, x.count(), DType::f64, holder.context.stream);
  kernel::fill_normal(dy.data(), 0, 1, 2, 0, first, dy.count(), DType::f64, holder.context.stream);
  const Variable leaf = holder.tape.leaf(x);
  const Variable y = perceptron(list, leaf);
  Outcome outcome{values(y.value()), {}, {}};
  holder.tape.seed(y, dy);
  holder.tape.backward();
  outcome.dx = values(holder.tape.take_gradient(leaf));
  for (const nn::Parameter& p : list.all())
    for (const double g : values(p.weight.grad)) outcome.gradients.push_back(g);
  holder.tape.clear();
  return outcome;
}

TEST(Moves, AProductOfOnesOwnBetweenThemIsTheDividedOne) {
  for (const int size : {2, 3})
    for (const bool sequence : {false, true})
      for (const bool gated : {false, true})
        with_holders(size, [&](comm::Communicator* world) {
          Holder holder(world, {.tp = size});
          Line line(*holder.mesh.group(Axis::tensor), std::chrono::seconds(60), nullptr);
          const TensorAxis axis{&line, sequence, false, true, 64};
          const int64_t rows = sequence ? B * T / size : B * T;
          const auto weights = [&](nn::ParameterList& list) {
            return nn::PerceptronWeights{list.find("w1").weight,   &list.find("b1").weight,
                                         list.find("w2").weight,   nullptr,
                                         kernel::Activation::gelu, gated};
          };
          const Outcome divided = run(holder, gated, rows, [&](nn::ParameterList& list, const Variable& x) {
            return perceptron(holder.tape, axis, x, weights(list), true, B);
          });
          const Outcome between = run(holder, gated, rows, [&](nn::ParameterList& list, const Variable& x) {
            const nn::PerceptronWeights p = weights(list);
            const Variable all = entered(holder.tape, axis, x, B);
            return leave(holder.tape, axis,
                         gated ? autograd::gated_perceptron(holder.tape, all, p.w1, p.b1, p.w2, nullptr)
                               : autograd::perceptron(holder.tape, all, p.w1, p.b1, p.activation, p.w2, nullptr));
          });
          const std::string what = fmt::format("{} ranks, sequence {}, gated {}", size, sequence, gated);
          EXPECT_LT(autograd::distance(between.y, divided.y), 1e-13) << what;
          EXPECT_LT(autograd::distance(between.dx, divided.dx), 1e-13) << what;
          EXPECT_LT(autograd::distance(between.gradients, divided.gradients), 1e-13) << what;
        });
}

}  // namespace
}  // namespace esp::parallel
