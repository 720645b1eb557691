#include "esp/autograd/tape.h"

#include <gtest/gtest.h>

#include <cstring>

#include "esp/autograd/functions/cross_entropy.h"
#include "esp/autograd/functions/embedding.h"
#include "esp/autograd/functions/linear.h"
#include "esp/autograd/functions/norm.h"
#include "esp/autograd/functions/pointwise.h"
#include "esp/autograd/recompute.h"
#include "esp/autograd/testing.h"

namespace esp::autograd {
namespace {

using kernel::Activation;
using kernel::NormKind;

// A small network with a tied embedding table: loss(norm(x + mlp(norm(x))) · tableᵀ) with x = table[ids].
struct Network {
  TapeFixture rig;
  Weight table, gamma, w1, w2;
  tensor::Tensor ids, targets;
  int num_ready[4] = {};

  explicit Network(DType dtype = DType::f32) {
    rig.fill(table, {8, 6}, 1, 1, dtype);
    rig.fill(gamma, {6}, 2, 1, dtype);
    rig.fill(w1, {6, 10}, 3, 1, dtype);
    rig.fill(w2, {10, 6}, 4, 1, dtype);
    ids = rig.ids({2, 3}, {0, 1, 2, 3, 1, 7});
    targets = rig.ids({2, 3}, {1, 2, 3, 4, -1, 0});
    int i = 0;
    for (Weight* w : all()) w->on_ready = [this, at = i++] { ++num_ready[at]; };
  }
  std::vector<Weight*> all() { return {&table, &gamma, &w1, &w2}; }

  Loss forward(bool again = false) {
    Tape& tape = rig.tape;
    const Variable x = embedding(tape, ids, table, nullptr);
    const auto branch = [this](Tape& t, const Variable& in) {
      const Variable y = norm(t, in, gamma, nullptr, NormKind::rms, 1e-6);
      return dropout(t, mlp(t, y, w1, nullptr, Activation::gelu, w2, nullptr), 0.3, {5, 6});
    };
    const Variable y = again ? recompute(tape, x, branch) : branch(tape, x);
    const ResidualNorm r = residual_norm(tape, x, y, gamma, nullptr, NormKind::rms, 1e-6);
    return linear_cross_entropy(tape, add(tape, r.sum, r.y), table, nullptr, targets, 0.2);
  }
  std::vector<char> gradients() {
    std::vector<char> bytes;
    for (Weight* w : all()) {
      const auto* data = static_cast<const char*>(w->grad.data());
      bytes.insert(bytes.end(), data, data + w->grad.bytes());
      kernel::fill(w->grad.data(), 0, w->grad.count(), w->grad.dtype(), rig.context.stream);
    }
    return bytes;
  }
};

TEST(Tape, SplitBackwardIsBitIdenticalToBackward) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
    for (const bool again : {false, true}) {
      Network net(dtype);
      backward(net.rig.tape, net.forward(again));
      net.rig.tape.clear();
      const auto whole = net.gradients();
      seed(net.rig.tape, net.forward(again));
      net.rig.tape.backward_inputs();
      net.rig.tape.backward_weights();
      net.rig.tape.clear();
      EXPECT_EQ(net.gradients(), whole) << name_of(dtype) << again;
    }
}

TEST(Tape, RecomputationIsBitIdenticalToStoredActivations) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    Network net(dtype);
    backward(net.rig.tape, net.forward(false));
    net.rig.tape.clear();
    const auto kept = net.gradients();
    EXPECT_TRUE(std::any_of(kept.begin(), kept.end(), [](char c) { return c != 0; }));
    backward(net.rig.tape, net.forward(true));
    net.rig.tape.clear();
    EXPECT_EQ(net.gradients(), kept) << name_of(dtype);
  }
}

TEST(Tape, OnReadyFiresOnceAfterLastUse) {
  for (const bool again : {false, true}) {
    Network net;
    std::vector<char> at_ready;
    net.table.on_ready = [&] {
      ++net.num_ready[0];
      const auto* data = static_cast<const char*>(net.table.grad.data());
      at_ready.assign(data, data + net.table.grad.bytes());
    };
    backward(net.rig.tape, net.forward(again));
    for (const int count : net.num_ready) EXPECT_EQ(count, 1) << again;
    // Both the loss and the embedding use the table, so its gradient is complete only after the embedding's backward.
    ASSERT_EQ(at_ready.size(), net.table.grad.bytes());
    EXPECT_EQ(std::memcmp(at_ready.data(), net.table.grad.data(), at_ready.size()), 0) << again;
    for (Weight* w : net.all()) EXPECT_EQ(w->pending, 0);
    net.rig.tape.clear();
  }
}

TEST(Tape, OnReadyFiresAfterWeightGradients) {
  Network net;
  seed(net.rig.tape, net.forward());
  net.rig.tape.backward_inputs();
  for (const int count : net.num_ready) EXPECT_EQ(count, 0);
  net.rig.tape.backward_weights();
  for (const int count : net.num_ready) EXPECT_EQ(count, 1);
  net.rig.tape.clear();
}

TEST(Tape, ClearBeforeBackwardResetsPendingUses) {
  Network net;
  net.forward();
  EXPECT_GT(net.w1.pending, 0);
  net.rig.tape.clear();
  for (Weight* w : net.all()) EXPECT_EQ(w->pending, 0);
  for (const int count : net.num_ready) EXPECT_EQ(count, 0);
}

TEST(Tape, FinishesNodesWithoutOutputGradient) {
  Network net;
  const Variable unused = linear(net.rig.tape, net.rig.random({1, 6}, 9, 1, DType::f32), net.w1, nullptr);
  const Variable used = linear(net.rig.tape, net.rig.random({1, 10}, 9, 1, DType::f32), net.w2, nullptr);
  net.rig.tape.seed(used, net.rig.random({1, 6}, 8, 1, DType::f32));
  net.rig.tape.backward();
  EXPECT_EQ(net.num_ready[2], 1);
  EXPECT_EQ(net.num_ready[3], 1);
  net.rig.tape.clear();
}

TEST(Tape, ReleasesSavedTensorsDuringBackward) {
  Network net;
  const auto activations = [&] { return net.rig.account.use(device::MemoryCategory::activation).current; };
  const uint64_t before = activations();
  {
    const Loss loss = net.forward();
    EXPECT_GT(activations(), before);
    backward(net.rig.tape, loss);
  }
  EXPECT_EQ(activations(), before);
  net.rig.tape.clear();
}

// y = w2·act(w1·x) with two hidden units and one output, compared with the chain rule computed by hand.
TEST(Tape, MatchesChainRule) {
  TapeFixture rig;
  Weight w1, w2;
  rig.fill(w1, {1, 2}, 1);
  rig.fill(w2, {2, 1}, 2);
  const tensor::Tensor x = rig.random({1, 1}, 3);
  const Variable hidden = activation(rig.tape, linear(rig.tape, x, w1, nullptr), Activation::tanh);
  const Variable y = linear(rig.tape, hidden, w2, nullptr);
  tensor::Tensor one = rig.random({1, 1}, 4);
  *one.as<double>() = 1;
  rig.tape.seed(y, one);
  rig.tape.backward();
  for (int i = 0; i < 2; ++i) {
    const double h = std::tanh(w1.value.as<double>()[i] * *x.as<double>());
    EXPECT_NEAR(w2.grad.as<double>()[i], h, 1e-14);
    EXPECT_NEAR(w1.grad.as<double>()[i], w2.value.as<double>()[i] * (1 - h * h) * *x.as<double>(), 1e-14);
  }
  rig.tape.clear();
}

// For y = x·W the gradient of W is the outer product of x and dy.
TEST(Linear, WeightGradientIsOuterProduct) {
  TapeFixture rig;
  Weight w;
  rig.fill(w, {3, 2}, 1);
  const tensor::Tensor x = rig.random({1, 3}, 2), dy = rig.random({1, 2}, 3);
  rig.tape.seed(linear(rig.tape, x, w, nullptr), dy);
  rig.tape.backward();
  for (int i = 0; i < 3; ++i)
    for (int j = 0; j < 2; ++j) EXPECT_EQ(w.grad.as<double>()[i * 2 + j], x.as<double>()[i] * dy.as<double>()[j]);
  rig.tape.clear();
}

TEST(Tape, ColumnSumsAreDiscardedWhenAnotherGradientIsAdded) {
  TapeFixture rig;
  Tape& tape = rig.tape;
  const Variable x = tape.leaf(rig.random({2, 3}, 2));
  EXPECT_FALSE(tape.column_sums_of(x.slot()).defined());
  tape.accumulate_gradient(x.slot(), rig.random({2, 3}, 3));
  tape.set_column_sums(x.slot(), rig.random({3}, 4));
  EXPECT_TRUE(tape.column_sums_of(x.slot()).defined());
  tape.accumulate_gradient(x.slot(), rig.random({2, 3}, 5));  // adds another gradient
  EXPECT_FALSE(tape.column_sums_of(x.slot()).defined());
  tape.set_column_sums(x.slot(), rig.random({3}, 6));
  tape.gradient_into(x.slot());  // this function may add another gradient
  EXPECT_FALSE(tape.column_sums_of(x.slot()).defined());
  tape.set_column_sums(x.slot(), rig.random({3}, 6));
  tape.take_gradient(x.slot());
  EXPECT_FALSE(tape.column_sums_of(x.slot()).defined());
  tape.clear();
}

}  // namespace
}  // namespace esp::autograd
