#include "esp/nn/moe/moe.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "esp/autograd/testing.h"
#include "esp/nn/moe/routing_report.h"
#include "esp/nn/parallel_ops.h"

namespace esp::nn {
namespace {

using autograd::TapeFixture;
using autograd::Variable;
using tensor::Tensor;

MoeOptions options_of(int64_t experts, int64_t chosen, bool gated = false) {
  MoeOptions o;
  o.num_experts = experts;
  o.num_chosen = chosen;
  o.expert.dim = 6;
  o.expert.ffn = 10;
  o.expert.gated = gated;
  o.expert.activation = gated ? kernel::Activation::silu : kernel::Activation::gelu;
  o.expert.init = o.expert.out_init = Init::normal(0.7);
  return o;
}

struct Layer {
  TapeFixture rig;
  ParameterList list;
  Moe moe;
  RoutingReport report;
  ForwardContext pass;

  explicit Layer(const MoeOptions& options, DType dtype = DType::f64) : moe(list, list, "mlp", options) {
    list.materialize(rig.context, dtype, true);
    list.initialise(3, rig.context.stream);
    pass.tape = &rig.tape;
    pass.training = true;
    pass.router_scale = 0.05;
    pass.routing = &report;
  }
  const RoutingReport::Layer& seen() const { return report.layers.at(0); }
};

TEST(Moe, OneExpertMatchesFeedForward) {
  for (DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (bool gated : {false, true}) {
      const MoeOptions options = options_of(1, 1, gated);
      Layer layer(options, dtype);
      ParameterList plain;
      const Mlp mlp(plain, "mlp.experts.0", options.expert);
      plain.materialize(layer.rig.context, dtype, true);
      plain.initialise(3, layer.rig.context.stream);
      const Tensor x = layer.rig.random({2, 5, 6}, 9, 1, dtype), dy = layer.rig.random({2, 5, 6}, 10, 1, dtype);
      const Variable a = layer.rig.tape.leaf(x), b = layer.rig.tape.leaf(x);
      const Variable y = layer.moe(layer.pass, a), z = mlp(layer.pass, b);
      EXPECT_EQ(std::memcmp(y.value().data(), z.value().data(), y.value().bytes()), 0);
      layer.rig.tape.seed(y, dy);
      layer.rig.tape.seed(z, dy);
      layer.rig.tape.backward();
      for (const Parameter& p : plain.all()) {
        const Tensor& mine = layer.list.find(p.name).weight.grad;
        EXPECT_EQ(std::memcmp(mine.data(), p.weight.grad.data(), mine.bytes()), 0) << p.name;
      }
      // With one expert the router has no gradient, so the gradient of x must be that of the expert.
      const Tensor da = layer.rig.tape.take_gradient(a), db = layer.rig.tape.take_gradient(b);
      for (int64_t i = 0; i < da.count(); ++i) EXPECT_EQ(tensor::item(da, i), tensor::item(db, i));
    }
}

TEST(Moe, GradientsMatchFiniteDifferences) {
  for (double capacity : {0.0, 0.8})
    for (int64_t shared : {0, 4}) {
      MoeOptions options = options_of(4, 2, shared > 0);
      options.capacity = capacity;
      options.shared_ffn = shared;
      Layer layer(options);
      std::vector<autograd::Weight*> weights;
      for (Parameter& p : layer.list.all()) weights.push_back(&p.weight);
      const autograd::Function f = [&](autograd::Tape& tape, const std::vector<Variable>& in) {
        layer.pass.tape = &tape;
        return std::vector<Variable>{layer.moe(layer.pass, in[0])};
      };
      EXPECT_LT(autograd::max_gradient_error(layer.rig, f, {layer.rig.random({2, 8, 6}, 5)}, weights), 1e-7)
          << capacity << ' ' << shared;
    }
}

TEST(Moe, DropsNoTokenWithoutCapacity) {
  Layer layer(options_of(5, 3));
  layer.moe(layer.pass, layer.rig.random({3, 40, 6}, 5));
  int64_t sum = 0;
  for (int64_t load : layer.seen().loads) sum += load;
  EXPECT_EQ(sum, 3 * 120);
  EXPECT_EQ(layer.seen().tokens, 120);
  EXPECT_EQ(layer.seen().dropped, 0);
  layer.rig.tape.clear();
}

TEST(Moe, OverflowingTokensContributeNothing) {
  MoeOptions options = options_of(4, 1);
  options.capacity = 1;
  Layer layer(options);
  // All tokens are equal, so all choose the same expert. Its capacity is a quarter of the tokens, so it takes the first
  // quarter.
  Tensor x = layer.rig.random({1, 8, 6}, 5);
  for (int64_t t = 1; t < 8; ++t) std::copy_n(x.as<double>(), 6, x.as<double>() + t * 6);
  EXPECT_EQ(expert_capacity(options, 8), 2);
  const Variable y = layer.moe(layer.pass, x);
  EXPECT_EQ(layer.seen().dropped, 6);
  for (int64_t i = 0; i < 48; ++i) EXPECT_EQ(y.value().as<double>()[i] != 0, i < 12) << i;
  // Incrementally decoded tokens are not dropped.
  const Variable z = layer.moe.extend(layer.pass, x);
  for (int64_t i = 0; i < 48; ++i) EXPECT_NE(z.value().as<double>()[i], 0) << i;
  layer.rig.tape.clear();
}

TEST(Moe, RoutesSequencesIndependently) {
  MoeOptions options = options_of(4, 2);
  options.capacity = 0.7;
  options.aux_weight = 0.3;
  options.z_weight = 0.1;
  const auto gradient = [&](std::vector<int64_t> batches, std::vector<double>& out) {
    Layer layer(options);
    const Tensor x = layer.rig.random({4, 8, 6}, 5), dy = layer.rig.random({4, 8, 6}, 6);
    int64_t first = 0;
    for (int64_t count : batches) {
      const Variable in = layer.rig.tape.leaf(x.slice(first, first + count));
      const Variable y = layer.moe(layer.pass, in);
      layer.rig.tape.seed(y, dy.slice(first, first + count));
      layer.rig.tape.backward();
      for (double v : y.value().span<double>()) out.push_back(v);
      layer.rig.tape.clear();
      first += count;
    }
    std::vector<double> all;
    for (const auto& unit : layer.list.units())
      all.insert(all.end(), unit.grads.as<double>(), unit.grads.as<double>() + unit.count);
    return all;
  };
  std::vector<double> together, apart;
  const auto a = gradient({4}, together), b = gradient({1, 2, 1}, apart);
  EXPECT_EQ(together, apart);  // bit-identical
  EXPECT_LT(autograd::distance(a, b), 1e-14);
}

class Watched final : public ParallelOps, private TokenDispatcher {
 public:
  explicit Watched(std::vector<std::string>& seen) : seen_(seen) {}
  const TokenDispatcher& experts() const override { return *this; }

 private:
  DispatchedRows dispatch(ForwardContext& pass, const Variable& rows, const Tensor& counts) const override {
    seen_.emplace_back("send");
    return TokenDispatcher::dispatch(pass, rows, counts);
  }
  Variable receive(ForwardContext& pass, DispatchedRows& dispatched) const override {
    seen_.emplace_back("receive");
    return TokenDispatcher::receive(pass, dispatched);
  }
  std::vector<std::string>& seen_;
};

TEST(Moe, SharedExpertComputesDuringDispatch) {
  MoeOptions options = options_of(4, 2);
  options.shared_ffn = 5;
  Layer layer(options);
  std::vector<std::string> seen;
  const Watched regions(seen);
  layer.pass.ops = &regions;
  layer.list.find("mlp.shared.up.weight").weight.on_use = [&] { seen.emplace_back("shared"); };
  layer.list.find("mlp.experts.0.up.weight").weight.on_use = [&] { seen.emplace_back("expert"); };
  layer.moe(layer.pass, layer.rig.random({1, 8, 6}, 5));
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  EXPECT_EQ(seen, (std::vector<std::string>{"send", "shared", "receive", "expert"}));
  layer.rig.tape.clear();
}

TEST(Moe, BuildsOnlyLocalExperts) {
  ParameterList list, experts(ModelShards{{}, {1, 3}});
  MoeOptions options = options_of(5, 2);
  options.shared_ffn = 7;
  const Moe moe(list, experts, "blocks.0.mlp", options);
  EXPECT_EQ(list.find("blocks.0.mlp.router.weight").shape, (tensor::Shape{6, 5}));
  EXPECT_EQ(list.find("blocks.0.mlp.shared.up.weight").shape, (tensor::Shape{6, 7}));
  ASSERT_EQ(experts.all().size(), 8u);
  EXPECT_EQ(experts.all().front().name, "blocks.0.mlp.experts.2.up.weight");
  EXPECT_EQ(experts.all().back().name, "blocks.0.mlp.experts.3.down.bias");
}

}  // namespace
}  // namespace esp::nn
