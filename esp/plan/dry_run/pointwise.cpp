// Elementwise operators: add, dropout, bias, rotary embedding, norm.
#include "esp/plan/dry_run/operators.h"

namespace esp::plan::dry_run {
namespace {

struct AddNode final : DryRunNode {
  int a, b, y;
  AddNode(int of_a, int of_b, int of_y) : a(of_a), b(of_b), y(of_y) {}
  void backward_input(DryRunTape& tape) override {
    const BufferHandle dy = tape.take_gradient(y);
    if (a >= 0) tape.add_gradient(a, dy);
    if (b >= 0) tape.add_gradient(b, dy);
  }
};

struct DropoutNode final : DryRunNode {
  int x, y;
  DropoutNode(int of_x, int of_y) : x(of_x), y(of_y) {}
  void backward_input(DryRunTape& tape) override {
    tape.add_gradient(x, tape.activation(tape.gradient_of(y)->bytes()));
  }
};

struct AddBiasNode final : DryRunNode {
  int x, y;
  BufferHandle dy;
  AddBiasNode(int of_x, int of_y, DryRunWeight* b) : x(of_x), y(of_y) { weights = {b}; }
  void backward_input(DryRunTape& tape) override {
    dy = tape.take_gradient(y);
    if (x >= 0) tape.add_gradient(x, dy);
  }
  void backward_weight(DryRunTape& tape) override {
    tape.gradient(weights[0]);
    dy = {};
  }
};

struct RotaryNode final : DryRunNode {
  int x, y;
  RotaryNode(int of_x, int of_y) : x(of_x), y(of_y) {}
  void backward_input(DryRunTape& tape) override {
    tape.gradient_buffer(y);
    tape.add_gradient(x, tape.take_gradient(y));
  }
};

struct NormNode final : DryRunNode {
  int x, branch, sum, y;
  DryRunWeight* gamma;
  BufferHandle normalised, mean, rstd;
  void backward_input(DryRunTape& tape) override {
    const auto add = [&](int into) {
      tape.gradient_buffer(into);
      use_weight(tape, gamma);
    };
    if (sum < 0) {
      if (x >= 0) add(x);
      return;
    }
    if (tape.gradient_of(y)) add(sum);
    const BufferHandle d_sum = tape.take_gradient(sum);
    if (branch >= 0) tape.add_gradient(branch, d_sum);
    if (x >= 0) tape.add_gradient(x, d_sum);
  }
  void backward_weight(DryRunTape& tape) override {
    if (tape.gradient_of(y))
      for (DryRunWeight* weight : weights) tape.gradient(weight);
  }
};

}  // namespace

std::vector<DryRunWeight*> non_null(std::initializer_list<DryRunWeight*> weights) {
  std::vector<DryRunWeight*> some;
  for (DryRunWeight* weight : weights)
    if (weight) some.push_back(weight);
  return some;
}

void use_weight(DryRunTape& tape, DryRunWeight* weight) {
  if (weight) tape.hooks().use(*weight);
}

DryRunVariable add(DryRunTape& tape, const DryRunVariable& a, const DryRunVariable& b) {
  DryRunVariable y{tape.activation(a.value->bytes())};
  if (!tape.needs_gradient({&a, &b}, {})) return y;
  y = tape.output(y.value);
  tape.record(std::make_unique<AddNode>(a.slot, b.slot, y.slot));
  return y;
}

DryRunVariable dropout(DryRunTape& tape, const RankSizes& s, const DryRunVariable& x) {
  if (s.dropout == 0) return x;
  DryRunVariable y{tape.activation(x.value->bytes())};
  if (!tape.needs_gradient({&x}, {})) return y;
  y = tape.output(y.value);
  tape.record(std::make_unique<DropoutNode>(x.slot, y.slot));
  return y;
}

DryRunVariable add_bias(DryRunTape& tape, const DryRunVariable& x, DryRunWeight* b) {
  if (!b) return x;
  use_weight(tape, b);
  if (!tape.needs_gradient({&x}, {b})) return x;
  DryRunVariable y = tape.output(x.value);
  tape.record(std::make_unique<AddBiasNode>(x.slot, y.slot, b));
  return y;
}

DryRunVariable rotary(DryRunTape& tape, const DryRunVariable& x) {
  if (!tape.needs_gradient({&x}, {})) return x;
  DryRunVariable y = tape.output(x.value);
  tape.record(std::make_unique<RotaryNode>(x.slot, y.slot));
  return y;
}

NormOutputs norm(DryRunTape& tape, const RankSizes& s, const DryRunVariable& x, const DryRunVariable& branch,
                 DryRunWeight* gamma, DryRunWeight* beta) {
  const int64_t bytes = x.value->bytes(), rows = bytes / (s.dim * s.element_bytes);
  auto node = std::make_unique<NormNode>();
  if (s.layer_norm) node->mean = tape.activation(rows * kStatisticBytes);
  node->rstd = tape.activation(rows * kStatisticBytes);
  const bool residual = branch.value != nullptr;
  DryRunVariable sum = x;
  if (residual) sum = {tape.activation(bytes)};
  DryRunVariable y{tape.activation(bytes)};
  use_weight(tape, gamma);
  use_weight(tape, beta);
  node->weights = non_null({gamma, beta});
  if (!tape.needs_gradient({&x, &branch}, node->weights)) return {sum, y};
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

}  // namespace esp::plan::dry_run
