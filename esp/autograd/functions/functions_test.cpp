// Checks the gradients of every function against central differences in fp64.
#include <gtest/gtest.h>

#include "esp/autograd/functions/attention.h"
#include "esp/autograd/functions/embedding.h"
#include "esp/autograd/functions/linear.h"
#include "esp/autograd/functions/norm.h"
#include "esp/autograd/functions/pointwise.h"
#include "esp/autograd/testing.h"

namespace esp::autograd {
namespace {

using kernel::Activation;
using kernel::NormKind;
using Variables = std::vector<Variable>;

constexpr double kTolerance = 1e-6;
constexpr Activation kActivations[] = {Activation::relu, Activation::gelu, Activation::gelu_erf, Activation::silu,
                                       Activation::tanh};

TEST(Linear, GradientsMatchFiniteDifferences) {
  TapeFixture rig;
  Weight w, b;
  rig.fill(w, {5, 4}, 2);
  rig.fill(b, {4}, 3);
  const Function with_bias = [&](Tape& t, const Variables& x) { return Variables{linear(t, x[0], w, &b)}; };
  EXPECT_LT(max_gradient_error(rig, with_bias, {rig.random({2, 3, 5}, 1)}, {&w, &b}), kTolerance);
  const Function plain = [&](Tape& t, const Variables& x) { return Variables{linear(t, x[0], w, nullptr)}; };
  EXPECT_LT(max_gradient_error(rig, plain, {rig.random({3, 5}, 1)}, {&w}), kTolerance);
}

TEST(MlpFunction, GradientsMatchFiniteDifferences) {
  TapeFixture rig;
  Weight w1, b1, w2, b2;
  rig.fill(w1, {4, 6}, 2);
  rig.fill(b1, {6}, 3);
  rig.fill(w2, {6, 4}, 4);
  rig.fill(b2, {4}, 5);
  for (const Activation kind : kActivations)
    for (const bool keep : {true, false}) {
      const Function f = [&](Tape& t, const Variables& x) {
        return Variables{mlp(t, x[0], w1, &b1, kind, w2, &b2, keep)};
      };
      EXPECT_LT(max_gradient_error(rig, f, {rig.random({2, 3, 4}, 1)}, {&w1, &b1, &w2, &b2}), kTolerance)
          << kernel::name_of(kind) << keep;
    }
}

TEST(GatedMlp, GradientsMatchFiniteDifferences) {
  TapeFixture rig;
  Weight w1, b1, w2, b2;
  rig.fill(w1, {4, 12}, 2);
  rig.fill(b1, {12}, 3);
  rig.fill(w2, {6, 4}, 4);
  rig.fill(b2, {4}, 5);
  for (const bool keep : {true, false}) {
    const Function f = [&](Tape& t, const Variables& x) {
      return Variables{gated_mlp(t, x[0], w1, &b1, w2, &b2, keep)};
    };
    EXPECT_LT(max_gradient_error(rig, f, {rig.random({2, 3, 4}, 1)}, {&w1, &b1, &w2, &b2}), kTolerance) << keep;
  }
}

TEST(Norm, GradientsMatchFiniteDifferences) {
  TapeFixture rig;
  Weight gamma, beta;
  rig.fill(gamma, {6}, 2);
  rig.fill(beta, {6}, 3);
  for (const NormKind kind : {NormKind::layer, NormKind::rms}) {
    Weight* bias = kind == NormKind::layer ? &beta : nullptr;
    std::vector<Weight*> weights{&gamma};
    if (bias) weights.push_back(bias);
    const Function alone = [&](Tape& t, const Variables& x) {
      return Variables{norm(t, x[0], gamma, bias, kind, 1e-5)};
    };
    EXPECT_LT(max_gradient_error(rig, alone, {rig.random({2, 3, 6}, 1)}, weights), kTolerance);
    const Function fused = [&](Tape& t, const Variables& x) {
      const ResidualNorm r = residual_norm(t, x[0], x[1], gamma, bias, kind, 1e-5);
      return Variables{r.sum, r.y};
    };
    EXPECT_LT(max_gradient_error(rig, fused, {rig.random({2, 3, 6}, 1), rig.random({2, 3, 6}, 4)}, weights),
              kTolerance);
    const Function normed_only = [&](Tape& t, const Variables& x) {
      return Variables{residual_norm(t, x[0], x[1], gamma, bias, kind, 1e-5).y};
    };
    EXPECT_LT(max_gradient_error(rig, normed_only, {rig.random({2, 3, 6}, 1), rig.random({2, 3, 6}, 4)}, weights),
              kTolerance);
  }
}

TEST(Norm, OutputHasMeanZeroAndVarianceOne) {
  TapeFixture rig;
  Weight gamma;
  rig.fill(gamma, {64}, 2);
  kernel::fill(gamma.value.data(), 1, 64, DType::f64, rig.context.stream);
  const tensor::Tensor y = norm(rig.tape, rig.random({1, 64}, 1, 3), gamma, nullptr, NormKind::layer, 1e-12).value();
  double mean = 0, square = 0;
  for (double v : y.span<double>()) mean += v / 64, square += v * v / 64;
  EXPECT_NEAR(mean, 0, 1e-14);
  EXPECT_NEAR(square, 1, 1e-9);
  rig.tape.clear();  // the tape has pointers to gamma, which is destroyed before the tape
}

TEST(Pointwise, GradientsMatchFiniteDifferences) {
  TapeFixture rig;
  const auto x = rig.random({2, 3, 4}, 1), z = rig.random({2, 3, 4}, 2);
  const auto check = [&](const char* name, const Function& f, std::vector<tensor::Tensor> inputs) {
    EXPECT_LT(max_gradient_error(rig, f, inputs, {}), kTolerance) << name;
  };
  check("add", [](Tape& t, const Variables& v) { return Variables{add(t, v[0], v[1])}; }, {x, z});
  check("add twice", [](Tape& t, const Variables& v) { return Variables{add(t, add(t, v[0], v[1]), v[0])}; }, {x, z});
  for (const Activation kind : kActivations)
    check("activation", [&](Tape& t, const Variables& v) { return Variables{activation(t, v[0], kind)}; }, {x});
  check("swiglu", [](Tape& t, const Variables& v) { return Variables{swiglu(t, v[0])}; }, {x});
  check("swiglu twice", [](Tape& t, const Variables& v) { return Variables{swiglu(t, v[0]), swiglu(t, v[0])}; }, {x});
  check("dropout", [](Tape& t, const Variables& v) { return Variables{dropout(t, v[0], 0.4, {1, 2}, 5)}; }, {x});
  check("select_token", [](Tape& t, const Variables& v) { return Variables{select_token(t, v[0], 1)}; }, {x});
  check("select_token and x",
        [](Tape& t, const Variables& v) {
          return Variables{select_token(t, v[0], 2), v[0]};
        },
        {x});
}

TEST(Rotary, GradientsMatchFiniteDifferences) {
  TapeFixture rig;
  Weight w;
  rig.fill(w, {4, 12}, 2);
  // Rotates two heads of width 4 and leaves the third unchanged. Positions start at 3.
  using kernel::RopeScaling;
  for (const kernel::RotaryAngles& angles :
       {kernel::RotaryAngles{.theta = 100},
        {.theta = 100, .scaling = RopeScaling::linear, .factor = 3},
        {.theta = 100, .scaling = RopeScaling::yarn, .factor = 3, .original_seq_len = 100},
        {.theta = 100, .scaling = RopeScaling::llama3, .factor = 3, .original_seq_len = 100}}) {
    const Function f = [&](Tape& t, const Variables& x) {
      return Variables{rotary(t, linear(t, x[0], w, nullptr), 2, 4, 3, angles)};
    };
    EXPECT_LT(max_gradient_error(rig, f, {rig.random({2, 3, 4}, 1)}, {&w}), kTolerance)
        << static_cast<int>(angles.scaling);
  }
}

TEST(Embedding, AddsGradientsOfRepeatedIds) {
  TapeFixture rig;
  Weight table, positions;
  rig.fill(table, {5, 3}, 2);
  rig.fill(positions, {6, 3}, 3);
  const tensor::Tensor ids = rig.ids({2, 3}, {4, 0, 4, 4, 1, 1});
  const Function f = [&](Tape& t, const Variables&) { return Variables{embedding(t, ids, table, &positions, 2)}; };
  EXPECT_LT(max_gradient_error(rig, f, {}, {&table, &positions}), kTolerance);
}

AttentionArgs options(int64_t heads, int64_t kv_heads, bool causal) {
  AttentionArgs o;
  o.heads = heads;
  o.kv_heads = kv_heads;
  o.head_dim = 4;
  o.causal = causal;
  return o;
}

TEST(Attention, GradientsMatchFiniteDifferences) {
  TapeFixture rig;
  for (const int64_t kv_heads : {4, 2, 1})
    for (const bool causal : {true, false})
      for (const double rate : {0.0, 0.3})
        for (const bool padded : {false, true}) {
          AttentionArgs o = options(4, kv_heads, causal);
          o.dropout = rate;
          o.key = {3, 4};
          o.first_sequence = 7;
          if (padded) o.key_lengths = rig.ids({2}, {5, 2});
          const Function self = [&](Tape& t, const Variables& x) { return Variables{self_attention(t, x[0], o)}; };
          EXPECT_LT(max_gradient_error(rig, self, {rig.random({2, 5, (4 + 2 * kv_heads) * 4}, 1)}, {}), kTolerance)
              << kv_heads << causal << rate << padded;
          if (causal) continue;
          const Function cross = [&](Tape& t, const Variables& x) {
            return Variables{cross_attention(t, x[0], x[1], o)};
          };
          EXPECT_LT(
              max_gradient_error(rig, cross, {rig.random({2, 3, 16}, 1), rig.random({2, 5, kv_heads * 8}, 2)}, {}),
              kTolerance)
              << kv_heads << rate << padded;
        }
}

TEST(Attention, AccumulatesIntoExistingGradient) {
  TapeFixture rig;
  const AttentionArgs o = options(2, 2, true);
  const Function f = [&](Tape& t, const Variables& x) {
    return Variables{self_attention(t, x[0], o), activation(t, x[0], Activation::tanh), self_attention(t, x[0], o)};
  };
  EXPECT_LT(max_gradient_error(rig, f, {rig.random({1, 4, 24}, 1)}, {}), kTolerance);
}

}  // namespace
}  // namespace esp::autograd
