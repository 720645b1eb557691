#include <algorithm>

#include "esp/plan/ghost/parts.h"

namespace esp::plan::ghost {
namespace {

using comm::Op;

constexpr int64_t kPieceBytes = int64_t{1} << 20;  // parallel::RegionOptions::piece_bytes

// The all-reduced input gradient of a column-parallel GEMM.
struct EnterNode final : Node {
  const Sizes& s;
  int x, y;
  Tensor all, dx;
  EnterNode(const Sizes& sizes, int of_x, int of_y) : s(sizes), x(of_x), y(of_y) {}
  void prepare(Tape& tape) override {
    if (tape.gradient_of(y)) make_room(tape);
  }
  void backward_input(Tape& tape) override {
    if (!dx) make_room(tape);
    all = {};
    tape.take_gradient(y);
    tape.give_gradient(x, std::move(dx));
  }
  void make_room(Tape& tape) {
    all = tape.gradient_into(y);
    dx = s.sequence ? tape.activation(s.stream_bytes()) : all;
    tape.note(s.sequence ? Op::reduce_scatter : Op::all_reduce, s.rows() * s.dim, s.element);
  }
};

// The residual stream as the input of a GEMM.
struct StreamInput {
  const Sizes& s;
  Variable x;
  Tensor all;  // where it is the same, or was gathered again
  int slot;
  StreamInput(const Sizes& sizes, const Variable& of) : s(sizes), x(of), slot(of.slot) {
    if (!s.sequence) all = x.value;
  }
  void product(Tape& tape) const {
    if (!s.sequence) return;
    tape.scratch(s.all_bytes());
    tape.note(Op::all_gather, s.rows() * s.dim, s.element);
  }
  void record(Tape& tape) {
    if (s.tp == 1 || !tape.wants({&x}, {})) return;
    const int entered = tape.output(x.value, s.all_bytes()).slot;
    tape.record(std::make_unique<EnterNode>(s, x.slot, entered));
    slot = entered;
  }
  void start_again(Tape& tape) {
    if (all) return;
    all = tape.scratch(s.all_bytes());
    tape.note(Op::all_gather, s.rows() * s.dim, s.element);
  }
};

Tensor gemm_to_stream(Tape& tape, const Sizes& s) {
  Tensor y = tape.activation(s.stream_bytes());
  if (s.tp == 1) return y;
  const int64_t share = s.own_rows();
  const int64_t pieces = std::clamp<int64_t>(share * s.dim * s.element * (s.sequence ? s.tp : 1) / kPieceBytes, 1,
                                             std::min<int64_t>(4, share));
  for (int64_t i = 0; i < pieces; ++i) {
    const int64_t rows_of_piece = share * (i + 1) / pieces - share * i / pieces;
    tape.note(s.sequence ? Op::reduce_scatter : Op::all_reduce, rows_of_piece * (s.sequence ? s.tp : 1) * s.dim,
              s.element);
  }
  if (!s.sequence) return y;
  // Maximum number of piece sums in flight: the last may begin before the first ends.
  std::vector<Tensor> moving;
  for (int64_t i = 0; i < pieces; ++i)
    moving.push_back(tape.scratch(s.tp * (share * (i + 1) / pieces - share * i / pieces) * s.dim * s.element));
  return y;
}

// dy with all its rows.
Tensor gemm_from_stream(Tape& tape, const Sizes& s, const Tensor& dy) {
  if (!s.sequence) return dy;
  tape.note(Op::all_gather, s.rows() * s.dim, s.element);
  return tape.scratch(s.all_bytes());
}

struct ColumnsNode final : Node {
  StreamInput x;
  int y;
  Weight *w, *b;
  ColumnsNode(StreamInput in, int of_y, Weight* weight, Weight* bias) : x(std::move(in)), y(of_y), w(weight), b(bias) {
    weights = trained({w, b});
  }
  void backward_input(Tape& tape) override {
    x.start_again(tape);
    use(tape, w);
    if (x.slot >= 0) tape.gradient_into(x.slot);
  }
  void backward_weight(Tape& tape) override {
    tape.gradient(w);
    tape.gradient(b);
  }
};

struct RowsNode final : Node {
  const Sizes& s;
  Variable h;
  int y;
  Weight *w, *b;
  Tensor dy;
  RowsNode(const Sizes& sizes, const Variable& of, int of_y, Weight* weight, Weight* bias)
      : s(sizes), h(of), y(of_y), w(weight), b(bias) {
    weights = trained({w, b});
  }
  void backward_input(Tape& tape) override {
    use(tape, w);
    if (h.slot >= 0) tape.gradient_into(h.slot);
    dy = gemm_from_stream(tape, s, tape.gradient_of(y));
  }
  void backward_weight(Tape& tape) override {
    tape.gradient(w);
    tape.gradient(b);
    dy = {};
  }
};

struct PerceptronNode final : Node {
  const Sizes& s;
  StreamInput x;
  int y;
  Weight *w1, *b1, *w2, *b2;
  Tensor pre, hidden, d_pre, dy;
  PerceptronNode(const Sizes& sizes, StreamInput in) : s(sizes), x(std::move(in)) {}
  int64_t hidden_bytes() const { return s.rows() * s.ffn * s.element; }
  void backward_input(Tape& tape) override {
    if (!hidden) hidden = tape.activation(hidden_bytes());
    if (s.gated && s.tp == 1) {
      const Tensor d_hidden = tape.scratch(hidden_bytes());
      use(tape, w2);
      d_pre = tape.activation(pre->bytes());
    } else {
      d_pre = tape.activation(pre->bytes());
      const Tensor d_hidden = s.gated ? tape.scratch(hidden_bytes()) : Tensor();
      use(tape, w2);
      dy = gemm_from_stream(tape, s, tape.gradient_of(y));
    }
    pre = {};
    if (s.tp > 1) x.start_again(tape);
    if (x.slot >= 0) tape.gradient_into(x.slot);
    use(tape, w1);
  }
  void backward_weight(Tape& tape) override {
    tape.gradient(w2);
    tape.gradient(b2);
    hidden = {};
    dy = {};
    tape.gradient(w1);
    tape.gradient(b1);
  }
};

}  // namespace

Variable columns(Tape& tape, const Sizes& s, const Variable& x, int64_t out, Weight* w, Weight* b) {
  use(tape, w);
  use(tape, b);
  StreamInput in(s, x);
  Variable y{tape.activation(s.rows() * out * s.element)};
  in.product(tape);
  if (!tape.wants({&x}, trained({w, b}))) return y;
  in.record(tape);
  y = tape.output(y.value);
  tape.record(std::make_unique<ColumnsNode>(std::move(in), y.slot, w, b));
  return y;
}

Variable rows(Tape& tape, const Sizes& s, const Variable& h, Weight* w, Weight* b) {
  use(tape, w);
  Weight* with = s.tp == 1 ? b : nullptr;
  use(tape, with);
  Variable y{gemm_to_stream(tape, s)};
  if (tape.wants({&h}, trained({w, with}))) {
    y = tape.output(y.value);
    tape.record(std::make_unique<RowsNode>(s, h, y.slot, w, with));
  }
  return s.tp == 1 ? y : add_bias(tape, y, b);
}

Variable perceptron(Tape& tape, const Sizes& s, const Variable& x, const BlockWeights& w, bool keep) {
  Weight* b2 = s.tp == 1 ? w.down_bias : nullptr;
  const std::vector<Weight*> all = trained({w.up, w.up_bias, w.down, b2});
  const bool records = tape.wants({&x}, all);
  use(tape, w.up);
  use(tape, w.up_bias);
  StreamInput in(s, x);
  const int64_t hidden_bytes = s.rows() * s.ffn * s.element;
  Tensor pre, hidden;
  if (!s.gated && s.element == 4) {
    if (records) pre = tape.activation(hidden_bytes);
    hidden = tape.activation(hidden_bytes);
    in.product(tape);
  } else {
    pre = tape.activation(hidden_bytes * (s.gated ? 2 : 1));
    in.product(tape);
    // A rank that keeps nothing overwrites its input.
    hidden = s.tp == 1 && !s.gated && !records ? pre : tape.activation(hidden_bytes);
  }
  use(tape, w.down);
  use(tape, b2);
  Variable y{gemm_to_stream(tape, s)};
  if (records) {
    in.record(tape);
    y = tape.output(y.value);
    auto node = std::make_unique<PerceptronNode>(s, std::move(in));
    node->y = y.slot;
    node->w1 = w.up, node->b1 = w.up_bias, node->w2 = w.down, node->b2 = b2;
    node->weights = all;
    node->pre = std::move(pre);
    if (keep) node->hidden = std::move(hidden);
    hidden = {};
    tape.record(std::move(node));
  }
  return s.tp == 1 ? y : add_bias(tape, y, w.down_bias);
}

}  // namespace esp::plan::ghost
