// Sums, dropout, biases, rotary embedding and norms.
#include "esp/plan/ghost/parts.h"

namespace esp::plan::ghost {
namespace {

struct AddNode final : Node {
  int a, b, y;
  AddNode(int of_a, int of_b, int of_y) : a(of_a), b(of_b), y(of_y) {}
  void backward_input(Tape& tape) override {
    const Tensor dy = tape.take_gradient(y);
    if (a >= 0) tape.give_gradient(a, dy);
    if (b >= 0) tape.give_gradient(b, dy);
  }
};

struct DropoutNode final : Node {
  int x, y;
  DropoutNode(int of_x, int of_y) : x(of_x), y(of_y) {}
  void backward_input(Tape& tape) override { tape.give_gradient(x, tape.activation(tape.gradient_of(y)->bytes())); }
};

struct AddBiasNode final : Node {
  int x, y;
  Tensor dy;
  AddBiasNode(int of_x, int of_y, Weight* b) : x(of_x), y(of_y) { weights = {b}; }
  void backward_input(Tape& tape) override {
    dy = tape.take_gradient(y);
    if (x >= 0) tape.give_gradient(x, dy);
  }
  void backward_weight(Tape& tape) override {
    tape.gradient(weights[0]);
    dy = {};
  }
};

struct RotaryNode final : Node {
  int x, y;
  RotaryNode(int of_x, int of_y) : x(of_x), y(of_y) {}
  void backward_input(Tape& tape) override {
    tape.gradient_into(y);
    tape.give_gradient(x, tape.take_gradient(y));
  }
};

struct NormNode final : Node {
  int x, branch, sum, y;
  Weight* gamma;
  Tensor normalised, mean, rstd;
  void backward_input(Tape& tape) override {
    const auto add = [&](int into) {
      tape.gradient_into(into);
      use(tape, gamma);
    };
    if (sum < 0) {
      if (x >= 0) add(x);
      return;
    }
    if (tape.gradient_of(y)) add(sum);
    const Tensor d_sum = tape.take_gradient(sum);
    if (branch >= 0) tape.give_gradient(branch, d_sum);
    if (x >= 0) tape.give_gradient(x, d_sum);
  }
  void backward_weight(Tape& tape) override {
    if (tape.gradient_of(y))
      for (Weight* weight : weights) tape.gradient(weight);
  }
};

}  // namespace

std::vector<Weight*> trained(std::initializer_list<Weight*> weights) {
  std::vector<Weight*> some;
  for (Weight* weight : weights)
    if (weight) some.push_back(weight);
  return some;
}

void use(Tape& tape, Weight* weight) {
  if (weight) tape.holder().use(*weight);
}

Variable add(Tape& tape, const Variable& a, const Variable& b) {
  Variable y{tape.activation(a.value->bytes())};
  if (!tape.wants({&a, &b}, {})) return y;
  y = tape.output(y.value);
  tape.record(std::make_unique<AddNode>(a.slot, b.slot, y.slot));
  return y;
}

Variable dropout(Tape& tape, const Sizes& s, const Variable& x) {
  if (s.dropout == 0) return x;
  Variable y{tape.activation(x.value->bytes())};
  if (!tape.wants({&x}, {})) return y;
  y = tape.output(y.value);
  tape.record(std::make_unique<DropoutNode>(x.slot, y.slot));
  return y;
}

Variable add_bias(Tape& tape, const Variable& x, Weight* b) {
  if (!b) return x;
  use(tape, b);
  if (!tape.wants({&x}, {b})) return x;
  Variable y = tape.output(x.value);
  tape.record(std::make_unique<AddBiasNode>(x.slot, y.slot, b));
  return y;
}

Variable rotary(Tape& tape, const Variable& x) {
  if (!tape.wants({&x}, {})) return x;
  Variable y = tape.output(x.value);
  tape.record(std::make_unique<RotaryNode>(x.slot, y.slot));
  return y;
}

Normed norm(Tape& tape, const Sizes& s, const Variable& x, const Variable& branch, Weight* gamma, Weight* beta) {
  const int64_t bytes = x.value->bytes(), rows = bytes / (s.dim * s.element);
  auto node = std::make_unique<NormNode>();
  if (s.layer_norm) node->mean = tape.activation(rows * kStatistic);
  node->rstd = tape.activation(rows * kStatistic);
  const bool residual = branch.value != nullptr;
  Variable sum = x;
  if (residual) sum = {tape.activation(bytes)};
  Variable y{tape.activation(bytes)};
  use(tape, gamma);
  use(tape, beta);
  node->weights = trained({gamma, beta});
  if (!tape.wants({&x, &branch}, node->weights)) return {sum, y};
  if (residual) sum = tape.output(sum.value);
  y = tape.output(y.value);
  node->x = x.slot;
  node->branch = branch.slot;
  node->sum = residual ? sum.slot : -1;
  node->y = y.slot;
  node->gamma = gamma;
  node->normalised = sum.value;
  tape.record(std::move(node), residual ? 2 : 1);
  return {sum, y};
}

}  // namespace esp::plan::ghost
