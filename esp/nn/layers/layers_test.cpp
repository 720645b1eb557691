// Compares the gradients of every layer, for inputs and parameters, with central finite differences in fp64.
#include <gtest/gtest.h>

#include "esp/autograd/testing.h"
#include "esp/nn/layers/block.h"
#include "esp/nn/layers/embedding.h"
#include "esp/nn/layers/head.h"

namespace esp::nn {
namespace {

using autograd::Tape;
using autograd::TapeFixture;
using autograd::Variable;
using Variables = std::vector<Variable>;
using kernel::Activation;

constexpr double kTolerance = 1e-6;

struct LayerRig : TapeFixture {
  ParameterList list;

  // Fills the parameters with random values that make every gradient large enough to measure.
  void fill_parameters() {
    list.materialize(context, DType::f64, true);
    uint64_t seed = 40;
    for (Parameter& p : list.all())
      kernel::fill_normal(p.weight.value.data(), p.init.kind == Init::Distribution::one ? 1 : 0, 0.5, seed++, 0, 0,
                          p.count(), DType::f64, context.stream);
  }
  template <typename F>
  double worst(F f, const std::vector<tensor::Tensor>& inputs, bool training = false) {
    std::vector<autograd::Weight*> weights;
    for (Parameter& p : list.all()) weights.push_back(&p.weight);
    return autograd::max_gradient_error(
        *this,
        [&](Tape& t, const Variables& x) {
          ForwardContext pass;
          pass.tape = &t;
          pass.training = training;
          pass.seed = 5;
          pass.first_sequence = 3;
          return f(pass, x);
        },
        inputs, weights);
  }
};

AttentionOptions attention(int64_t kv_heads, bool causal, double theta) {
  AttentionOptions o;
  o.dim = 8;
  o.heads = 4;
  o.kv_heads = kv_heads;
  o.head_dim = 2;
  o.causal = causal;
  o.rope.theta = theta;
  o.init = o.out_init = Init::normal(1);
  return o;
}

TEST(Layers, SelfAttentionGradientsMatchFiniteDifferences) {
  for (const int64_t kv_heads : {4, 2})
    for (const double theta : {0.0, 100.0}) {
      LayerRig rig;
      const SelfAttention layer(rig.list, "a", attention(kv_heads, true, theta));
      rig.fill_parameters();
      const auto f = [&](ForwardContext& pass, const Variables& x) { return Variables{layer(pass, x[0], {})}; };
      EXPECT_LT(rig.worst(f, {rig.random({2, 3, 8}, 1)}), kTolerance) << kv_heads << " " << theta;
    }
}

TEST(Layers, CrossAttentionGradientsMatchFiniteDifferences) {
  LayerRig rig;
  const CrossAttention layer(rig.list, "c", attention(2, false, 0));
  rig.fill_parameters();
  const tensor::Tensor lengths = rig.ids({2}, {4, 2});
  const auto f = [&](ForwardContext& pass, const Variables& x) { return Variables{layer(pass, x[0], x[1], lengths)}; };
  EXPECT_LT(rig.worst(f, {rig.random({2, 3, 8}, 1), rig.random({2, 4, 8}, 2)}), kTolerance);
}

TEST(Layers, MlpGradientsMatchFiniteDifferences) {
  for (const Activation kind : {Activation::relu, Activation::gelu, Activation::gelu_erf, Activation::silu}) {
    LayerRig rig;
    const Init init = Init::normal(1);
    const Mlp layer(rig.list, "m", {4, 6, kind, kind == Activation::silu, true, init, init});
    rig.fill_parameters();
    const auto f = [&](ForwardContext& pass, const Variables& x) { return Variables{layer(pass, x[0])}; };
    EXPECT_LT(rig.worst(f, {rig.random({2, 3, 4}, 1)}), kTolerance) << kernel::name_of(kind);
  }
}

TEST(Layers, BlockGradientsMatchFiniteDifferences) {
  for (const bool post_norm : {false, true})
    for (const bool cross : {false, true})
      for (const bool training : {false, true}) {
        LayerRig rig;
        BlockOptions o;
        o.attention = attention(4, cross, 0);
        o.mlp = {8, 12, Activation::gelu, false, true, Init::normal(1), Init::normal(1)};
        o.post_norm = post_norm;
        o.cross = cross;
        o.dropout = 0.2;
        const Block layer(rig.list, "b", o);
        rig.fill_parameters();
        std::vector<tensor::Tensor> inputs{rig.random({2, 3, 8}, 1), rig.random({2, 3, 8}, 2)};
        if (cross) inputs.push_back(rig.random({2, 4, 8}, 3));
        const auto f = [&](ForwardContext& pass, const Variables& x) {
          BlockInputs more;
          if (cross) more.memory = x[2];
          return Variables{close(pass, layer(pass, {x[0], x[1]}, more))};
        };
        EXPECT_LT(rig.worst(f, inputs, training), kTolerance) << post_norm << cross << training;
      }
}

TEST(Layers, FusedResidualNormMatchesAddThenNorm) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    TapeFixture rig;
    ParameterList list;
    const Norm norm(list, "n", 32, {});
    list.materialize(rig.context, dtype, false);
    list.initialise(1, rig.context.stream);
    ForwardContext pass;
    pass.tape = &rig.tape;
    const ResidualStream open{rig.random({2, 3, 32}, 1, 1, dtype), rig.random({2, 3, 32}, 2, 1, dtype)};
    const auto fused = norm(pass, open);
    const Variable sum = close(pass, open), y = norm(pass, sum);
    EXPECT_EQ(std::memcmp(fused.sum.value().data(), sum.value().data(), sum.value().bytes()), 0) << name_of(dtype);
    EXPECT_EQ(std::memcmp(fused.y.value().data(), y.value().data(), y.value().bytes()), 0) << name_of(dtype);
  }
}

// Looking up a row by id is bit-identical to the GEMM of the one-hot row and the table.
TEST(Layers, EmbeddingMatchesOneHotGemm) {
  TapeFixture rig;
  ParameterList list;
  const Embedding embedding(list, "e", 7, 4, Init::normal(1));
  const Linear product(list, "p", 7, 4, false, Init::normal(1));
  list.materialize(rig.context, DType::f32, false);
  list.initialise(1, rig.context.stream);
  tensor::Tensor& table = embedding.parameter().weight.value;
  std::memcpy(product.weight().value.data(), table.data(), table.bytes());
  ForwardContext pass;
  pass.tape = &rig.tape;
  const tensor::Tensor ids = rig.ids({1, 5}, {6, 0, 3, 3, 1});
  const tensor::Tensor one_hot = tensor::zeros(rig.context, {1, 5, 7}, DType::f32, device::MemoryCategory::other);
  for (int t = 0; t < 5; ++t) one_hot.as<float>()[t * 7 + ids.as<int32_t>()[t]] = 1;
  const Variable a = embedding(pass, ids), b = product(pass, one_hot);
  EXPECT_EQ(std::memcmp(a.value().data(), b.value().data(), a.value().bytes()), 0);
}

// Y = X·[W₁ | W₂] computed per column block is bit-identical to the whole GEMM. Column-parallel layers rely on this.
TEST(Layers, ColumnBlocksMatchWholeGemm) {
  TapeFixture rig;
  ParameterList list;
  const Linear whole(list, "w", 40, 96, false, Init::normal(1));
  const Linear left(list, "l", 40, 48, false, Init::normal(1)), right(list, "r", 40, 48, false, Init::normal(1));
  list.materialize(rig.context, DType::f32, false);
  list.initialise(1, rig.context.stream);
  for (int64_t i = 0; i < 40; ++i)
    for (int64_t j = 0; j < 96; ++j)
      (j < 48 ? left : right).weight().value.as<float>()[i * 48 + j % 48] =
          whole.weight().value.as<float>()[i * 96 + j];
  ForwardContext pass;
  pass.tape = &rig.tape;
  const Variable x = rig.random({30, 40}, 3, 1, DType::f32);
  const Variable y = whole(pass, x), a = left(pass, x), b = right(pass, x);
  for (int64_t i = 0; i < 30; ++i)
    for (int64_t j = 0; j < 96; ++j)
      EXPECT_EQ(y.value().as<float>()[i * 96 + j], (j < 48 ? a : b).value().as<float>()[i * 48 + j % 48]);
}

TEST(Layers, HeadLossMatchesCrossEntropyOfItsLogits) {
  TapeFixture rig;
  ParameterList list;
  const Head head(list, "h", 4, 9, true, Init::normal(1));
  list.materialize(rig.context, DType::f64, true);
  list.initialise(1, rig.context.stream);
  ForwardContext pass;
  pass.tape = &rig.tape;
  const tensor::Tensor x = rig.random({2, 3, 4}, 1), targets = rig.ids({2, 3}, {0, 8, 3, 4, -1, 2});
  const tensor::Tensor logits = head.logits(pass, x);
  const autograd::Loss a = head.loss(pass, x, targets, 1);
  const autograd::Loss b = autograd::cross_entropy(rig.tape, logits, targets, 1);
  EXPECT_NEAR(tensor::item(a.total.value()), tensor::item(b.total.value()), 1e-12);
  rig.tape.clear();
}

}  // namespace
}  // namespace esp::nn
