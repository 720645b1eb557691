// Compares two implementations of a tensor-parallel GEMM: autograd's GEMM between the mappings f and g (as used in
// fp8), and the sharded GEMM that overlaps with communication.
#include "esp/parallel/tp/tp_mappings.h"

#include <gtest/gtest.h>

#include "esp/autograd/functions/linear.h"
#include "esp/autograd/testing.h"
#include "esp/parallel/testing.h"
#include "esp/parallel/tp/mlp.h"

namespace esp::parallel {
namespace {

using autograd::Variable;
using nn::Init;
using nn::ShardSpec;
using tensor::Tensor;

constexpr int64_t B = 2, T = 12, kDim = 5, kHidden = 24;

std::vector<double> values(const Tensor& x) {
  return {x.span<double>().begin(), x.span<double>().end()};
}

struct TpResult {
  std::vector<double> y, dx, gradients;
};

template <typename F>
TpResult run(ModelRank& holder, bool gated, int64_t rows, F mlp) {
  nn::ParameterList list(holder.shares());
  const int64_t wide = gated ? 2 * kHidden : kHidden;
  const std::vector<int64_t> halves = gated ? std::vector<int64_t>{kHidden, kHidden} : std::vector<int64_t>{};
  list.begin_unit("all");
  list.add("w1", {kDim, wide}, Init::normal(1), true, ShardSpec{1, halves, 1});
  list.add("b1", {wide}, Init::normal(1), false, ShardSpec{0, halves, 1});
  list.add("w2", {kHidden, kDim}, Init::normal(1), true, ShardSpec::along(0));
  list.materialize(holder.context, DType::f64, true);
  list.initialise(9, holder.context.stream);
  Tensor x = tensor::empty(holder.context, {1, rows, kDim}, DType::f64, device::MemoryCategory::other),
         dy = tensor::empty(holder.context, {1, rows, kDim}, DType::f64, device::MemoryCategory::other);
  const auto first = static_cast<uint64_t>(holder.mesh.coordinates().tp * rows * kDim * (rows < B * T));
  kernel::fill_normal(x.data(), 0, 1, 1, 0, first, x.count(), DType::f64, holder.context.stream);
  kernel::fill_normal(dy.data(), 0, 1, 2, 0, first, dy.count(), DType::f64, holder.context.stream);
  const Variable leaf = holder.tape.leaf(x);
  const Variable y = mlp(list, leaf);
  TpResult outcome{values(y.value()), {}, {}};
  holder.tape.seed(y, dy);
  holder.tape.backward();
  outcome.dx = values(holder.tape.take_gradient(leaf));
  for (const nn::Parameter& p : list.all())
    for (const double g : values(p.weight.grad)) outcome.gradients.push_back(g);
  holder.tape.clear();
  return outcome;
}

TEST(TpMappings, PlainGemmBetweenMappingsMatchesShardedGemm) {
  for (const int size : {2, 3})
    for (const bool sequence : {false, true})
      for (const bool gated : {false, true})
        run_model_ranks(size, [&](comm::Communicator* world) {
          ModelRank holder(world, {.tp = size});
          TpCommunicator tp_comm(*holder.mesh.group(MeshAxis::tensor), std::chrono::seconds(60), nullptr);
          const TensorAxis axis{&tp_comm, sequence, false, true, 64};
          const int64_t rows = sequence ? B * T / size : B * T;
          const auto weights = [&](nn::ParameterList& list) {
            return nn::MlpWeights{list.find("w1").weight,   &list.find("b1").weight,
                                  list.find("w2").weight,   nullptr,
                                  kernel::Activation::gelu, gated};
          };
          const TpResult divided = run(holder, gated, rows, [&](nn::ParameterList& list, const Variable& x) {
            return mlp(holder.tape, axis, x, weights(list), true, B);
          });
          const TpResult between = run(holder, gated, rows, [&](nn::ParameterList& list, const Variable& x) {
            const nn::MlpWeights p = weights(list);
            const Variable all = copy_to_tp(holder.tape, axis, x, B);
            return reduce_from_tp(holder.tape, axis,
                                  gated ? autograd::gated_mlp(holder.tape, all, p.w1, p.b1, p.w2, nullptr)
                                        : autograd::mlp(holder.tape, all, p.w1, p.b1, p.activation, p.w2, nullptr));
          });
          const std::string what = fmt::format("{} ranks, sequence {}, gated {}", size, sequence, gated);
          EXPECT_LT(autograd::distance(between.y, divided.y), 1e-13) << what;
          EXPECT_LT(autograd::distance(between.dx, divided.dx), 1e-13) << what;
          EXPECT_LT(autograd::distance(between.gradients, divided.gradients), 1e-13) << what;
        });
}

}  // namespace
}  // namespace esp::parallel
