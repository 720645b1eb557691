#include "esp/plan/ghost/layers.h"

#include <algorithm>

#include "esp/autograd/functions/cross_entropy.h"
#include "esp/plan/ghost/parts.h"

namespace esp::plan::ghost {
namespace {

using comm::Op;

struct Stream {
  Variable x, branch;
};

Stream block(Tape& tape, const Sizes& s, const BlockWeights& w, const Stream& in, bool keep) {
  Stream stream;
  {
    const Normed n = norm(tape, s, in.x, in.branch, w.norm1, w.norm1_bias);
    const int64_t width = (s.heads + 2 * s.kv_heads) * s.head_dim;
    const Variable mixed = attention(tape, s, columns(tape, s, n.y, width, w.qkv, w.qkv_bias));
    stream = {n.sum, dropout(tape, s, rows(tape, s, mixed, w.out, w.out_bias))};
  }
  const Normed n = norm(tape, s, stream.x, stream.branch, w.norm2, w.norm2_bias);
  return {n.sum, dropout(tape, s, perceptron(tape, s, n.y, w, keep))};
}

Variable close(Tape& tape, const Stream& stream) {
  return stream.branch.value ? add(tape, stream.x, stream.branch) : stream.x;
}

struct RecomputeNode final : Node {
  const Sizes& s;
  const BlockWeights& w;
  Variable x;
  int y;
  std::unique_ptr<Tape> inner;
  RecomputeNode(const Sizes& sizes, const BlockWeights& of, const Variable& in) : s(sizes), w(of), x(in) {}
  void backward_input(Tape& tape) override {
    inner = std::make_unique<Tape>(tape.account(), tape.holder());
    const Variable in = x.slot >= 0 ? inner->leaf(x.value) : Variable{x.value};
    {
      const Variable out = close(*inner, block(*inner, s, w, {in, {}}, true));
      inner->give_gradient(out.slot, tape.take_gradient(y));
    }
    if (x.slot >= 0)
      if (Tensor gathered = tape.take_gradient(x.slot)) inner->give_gradient(in.slot, std::move(gathered));
    inner->backward_inputs();
    if (x.slot >= 0)
      if (Tensor made = inner->take_gradient(in.slot)) tape.give_gradient(x.slot, std::move(made));
    x = {};
  }
  void backward_weight(Tape&) override {
    inner->backward_weights();
    inner.reset();
  }
};

Variable run_again(Tape& tape, const Sizes& s, const BlockWeights& w, const Variable& x) {
  std::vector<Weight*> noted;
  tape.set_recording(false);
  tape.noting = &noted;
  Variable y = close(tape, block(tape, s, w, {Variable{x.value}, {}}, true));
  tape.noting = nullptr;
  tape.set_recording(true);
  y = tape.output(y.value);
  auto node = std::make_unique<RecomputeNode>(s, w, x);
  node->y = y.slot;
  node->weights = std::move(noted);
  tape.record(std::move(node));
  return y;
}

struct EmbeddingNode final : Node {
  Tensor ids;
  explicit EmbeddingNode(const std::vector<Weight*>& of) { weights = of; }
  void backward_weight(Tape& tape) override {
    for (Weight* weight : weights) tape.gradient(weight);
  }
};

Variable embedding(Tape& tape, int64_t bytes, Tensor ids, Weight* table, Weight* positions) {
  use(tape, table);
  use(tape, positions);
  Variable y{tape.activation(bytes)};
  const std::vector<Weight*> all = trained({table, positions});
  if (!tape.wants({}, all)) return y;
  y = tape.output(y.value);
  auto node = std::make_unique<EmbeddingNode>(all);
  node->ids = std::move(ids);
  tape.record(std::move(node));
  return y;
}

struct LeaveNode final : Node {
  const Sizes& s;
  int x, y;
  LeaveNode(const Sizes& sizes, int of_x, int of_y) : s(sizes), x(of_x), y(of_y) {}
  void backward_input(Tape& tape) override {
    Tensor dy = tape.take_gradient(y);
    if (s.sequence) {
      dy = tape.activation(s.all_bytes());
      tape.note(Op::all_gather, s.rows() * s.dim, s.element);
    }
    tape.give_gradient(x, std::move(dy));
  }
};

struct LossNode final : Node {
  int x;
  Tensor dx;
  void backward_input(Tape& tape) override {
    if (x >= 0) tape.give_gradient(x, std::exchange(dx, {}));
  }
};

}  // namespace

Variable stem(Tape& tape, const Sizes& s, const StemWeights& w) {
  constexpr int64_t kId = 4;
  if (s.tp == 1 && s.cp == 1) return dropout(tape, s, embedding(tape, s.all_bytes(), {}, w.table, w.positions));
  Variable x;
  if (s.tp > 1) {
    const Tensor own = tape.activation(s.rows() * kId);
    const Variable looked = embedding(tape, s.all_bytes(), own, w.table, nullptr);
    x = looked;
    if (s.sequence) x = {tape.activation(s.stream_bytes())};
    tape.note(s.sequence ? Op::reduce_scatter : Op::all_reduce, s.rows() * s.dim, s.element);
    x = tape.output(x.value);
    tape.record(std::make_unique<LeaveNode>(s, looked.slot, x.slot));
  } else {
    x = embedding(tape, s.all_bytes(), {}, w.table, nullptr);
  }
  if (w.positions) {
    const Tensor at = tape.activation(s.own_rows() * kId);
    x = add(tape, x, embedding(tape, s.stream_bytes(), at, w.positions, nullptr));
  }
  return dropout(tape, s, x);
}

Variable blocks(Tape& tape, const Sizes& s, const std::vector<BlockWeights>& w, const Variable& x) {
  const size_t until = s.recompute_layers < 0 ? w.size() : std::min(w.size(), static_cast<size_t>(s.recompute_layers));
  Variable y = x;
  size_t i = 0;
  if (s.recompute_full)
    for (; i < until; ++i) y = run_again(tape, s, w[i], y);
  Stream stream{y, {}};
  for (; i < w.size(); ++i) stream = block(tape, s, w[i], stream, !s.recompute_selective || i >= until);
  return close(tape, stream);
}

Loss loss(Tape& tape, const Sizes& s, const HeadWeights& w, const Variable& state) {
  const Variable x = norm(tape, s, state, {}, w.norm, w.norm_bias).y;
  const int64_t rows = s.rows(), in_bytes = s.all_bytes();
  const bool divided = s.tp > 1;
  const Tensor all = divided && s.sequence ? tape.activation(in_bytes) : x.value;
  if (divided && s.sequence) tape.note(Op::all_gather, rows * s.dim, s.element);
  use(tape, w.table);
  use(tape, w.bias);
  Tensor losses = tape.activation(rows * kStatistic);
  Tensor dx = tape.activation(in_bytes);
  const int64_t block = autograd::rows_of_block(rows, s.gather_vocab_logits * s.element, s.device);
  {
    const Tensor both = divided ? tape.scratch(2 * block * kStatistic) : Tensor();
    const Tensor logits = tape.scratch(block * s.classes * s.element);
    const Tensor own_tops = divided ? tape.scratch(block * kStatistic) : Tensor(),
                 tops = divided ? tape.scratch(block * kStatistic) : Tensor();
    tape.gradient(w.table);
    tape.gradient(w.bias);
    for (int64_t first = 0; divided && first < rows; first += block) {
      const int64_t count = std::min(block, rows - first);
      tape.note(Op::all_reduce, count, kStatistic);
      tape.note(Op::all_reduce, 2 * count, kStatistic);
      if (!s.sequence) tape.note(Op::all_reduce, count * s.dim, s.element);
    }
    if (divided && s.sequence) tape.note(Op::reduce_scatter, rows * s.dim, s.element);
    Tensor total = std::make_shared<Piece>(tape.account(), MemoryCategory::other, 8);
    if (divided && s.sequence) dx = tape.activation(s.stream_bytes());
    Variable output = tape.output(std::move(total));
    auto node = std::make_unique<LossNode>();
    node->x = x.slot;
    node->dx = std::move(dx);
    node->weights = trained({w.table, w.bias});
    tape.record(std::move(node));
    return {output, std::move(losses)};
  }
}

}  // namespace esp::plan::ghost
