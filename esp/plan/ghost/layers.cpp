#include "esp/plan/ghost/layers.h"

#include <algorithm>

#include "esp/autograd/functions/cross_entropy.h"
#include "esp/kernel/attention.h"

namespace esp::plan::ghost {
namespace {

using comm::Op;

constexpr int64_t kStatistic = 4;                  // bytes
constexpr int64_t kPieceBytes = int64_t{1} << 20;  // parallel::RegionOptions::piece_bytes

std::vector<Weight*> trained(std::initializer_list<Weight*> weights) {
  std::vector<Weight*> some;
  for (Weight* weight : weights)
    if (weight) some.push_back(weight);
  return some;
}

void use(Tape& tape, Weight* weight) {
  if (weight) tape.holder().use(*weight);
}

// --- element by element ---

struct AddNode final : Node {
  int a, b, y;
  AddNode(int of_a, int of_b, int of_y) : a(of_a), b(of_b), y(of_y) {}
  void backward_input(Tape& tape) override {
    const Tensor dy = tape.take_gradient(y);
    if (a >= 0) tape.give_gradient(a, dy);
    if (b >= 0) tape.give_gradient(b, dy);
  }
};

Variable add(Tape& tape, const Variable& a, const Variable& b) {
  Variable y{tape.activation(a.value->bytes())};
  if (!tape.wants({&a, &b}, {})) return y;
  y = tape.output(y.value);
  tape.record(std::make_unique<AddNode>(a.slot, b.slot, y.slot));
  return y;
}

struct DropoutNode final : Node {
  int x, y;
  DropoutNode(int of_x, int of_y) : x(of_x), y(of_y) {}
  void backward_input(Tape& tape) override { tape.give_gradient(x, tape.activation(tape.gradient_of(y)->bytes())); }
};

Variable dropout(Tape& tape, const Sizes& s, const Variable& x) {
  if (s.dropout == 0) return x;
  Variable y{tape.activation(x.value->bytes())};
  if (!tape.wants({&x}, {})) return y;
  y = tape.output(y.value);
  tape.record(std::make_unique<DropoutNode>(x.slot, y.slot));
  return y;
}

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

Variable add_bias(Tape& tape, const Variable& x, Weight* b) {
  if (!b) return x;
  use(tape, b);
  if (!tape.wants({&x}, {b})) return x;
  Variable y = tape.output(x.value);
  tape.record(std::make_unique<AddBiasNode>(x.slot, y.slot, b));
  return y;
}

struct RotaryNode final : Node {
  int x, y;
  RotaryNode(int of_x, int of_y) : x(of_x), y(of_y) {}
  void backward_input(Tape& tape) override {
    tape.gradient_into(y);
    tape.give_gradient(x, tape.take_gradient(y));
  }
};

Variable rotary(Tape& tape, const Variable& x) {
  if (!tape.wants({&x}, {})) return x;
  Variable y = tape.output(x.value);
  tape.record(std::make_unique<RotaryNode>(x.slot, y.slot));
  return y;
}

// --- norms ---

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

struct Normed {
  Variable sum, y;
};

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

// --- the tensor axis ---

// Gradients of a divided product's input, summed.
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

// The stream as a product reads it.
struct StreamInput {
  const Sizes& s;
  Variable x;
  Tensor all;  // where it is the same, or has come again
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

Tensor product_to_stream(Tape& tape, const Sizes& s) {
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
  // Sums of pieces are under way together at most: the last may be begun before the first is over.
  std::vector<Tensor> moving;
  for (int64_t i = 0; i < pieces; ++i)
    moving.push_back(tape.scratch(s.tp * (share * (i + 1) / pieces - share * i / pieces) * s.dim * s.element));
  return y;
}

// dy with all its rows.
Tensor product_from_stream(Tape& tape, const Sizes& s, const Tensor& dy) {
  if (!s.sequence) return dy;
  tape.note(Op::all_gather, s.rows() * s.dim, s.element);
  return tape.scratch(s.all_bytes());
}

// --- products ---

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
    dy = product_from_stream(tape, s, tape.gradient_of(y));
  }
  void backward_weight(Tape& tape) override {
    tape.gradient(w);
    tape.gradient(b);
    dy = {};
  }
};

Variable rows(Tape& tape, const Sizes& s, const Variable& h, Weight* w, Weight* b) {
  use(tape, w);
  Weight* with = s.tp == 1 ? b : nullptr;
  use(tape, with);
  Variable y{product_to_stream(tape, s)};
  if (tape.wants({&h}, trained({w, with}))) {
    y = tape.output(y.value);
    tape.record(std::make_unique<RowsNode>(s, h, y.slot, w, with));
  }
  return s.tp == 1 ? y : add_bias(tape, y, b);
}

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
      dy = product_from_stream(tape, s, tape.gradient_of(y));
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

Variable perceptron(Tape& tape, const Sizes& s, const Variable& x, const BlockWeights& w) {
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
    // One holder that keeps nothing writes over what it reads.
    hidden = s.tp == 1 && !s.gated && !records ? pre : tape.activation(hidden_bytes);
  }
  use(tape, w.down);
  use(tape, b2);
  Variable y{product_to_stream(tape, s)};
  if (records) {
    in.record(tape);
    y = tape.output(y.value);
    auto node = std::make_unique<PerceptronNode>(s, std::move(in));
    node->y = y.slot;
    node->w1 = w.up, node->b1 = w.up_bias, node->w2 = w.down, node->b2 = b2;
    node->weights = all;
    node->pre = std::move(pre);
    if (s.keep_hidden) node->hidden = std::move(hidden);
    hidden = {};
    tape.record(std::move(node));
  }
  return s.tp == 1 ? y : add_bias(tape, y, w.down_bias);
}

// --- attention ---

int64_t workspace(const Sizes& s, int64_t queries, int64_t keys, int64_t heads, int64_t kv_heads) {
  kernel::AttentionShape shape;
  shape.batch = s.batch;
  shape.num_queries = queries;
  shape.num_keys = keys;
  shape.heads = heads;
  shape.kv_heads = kv_heads;
  shape.head_dim = s.head_dim;
  shape.causal = s.causal;
  const int64_t one = kernel::attention_workspace_bytes(shape, DType::f32, {});
  const int64_t none = 64;  // to align
  return none + (one - none) * s.threads;
}

struct AttentionNode final : Node {
  const Sizes& s;
  Variable qkv;
  int y;
  Tensor o, lse;
  int64_t tokens, heads, kv_heads;
  AttentionNode(const Sizes& sizes, const Variable& of, int of_y) : s(sizes), qkv(of), y(of_y) {}
  void backward_input(Tape& tape) override {
    const bool first = !tape.gradient_of(qkv.slot);
    const Tensor into = first ? tape.gradient_into(qkv.slot) : tape.scratch(qkv.value->bytes());
    tape.scratch(workspace(s, tokens, tokens, heads, kv_heads));
    if (!first) tape.give_gradient(qkv.slot, into);
  }
};

Variable self_attention(Tape& tape, const Sizes& s, const Variable& qkv, int64_t tokens, int64_t heads,
                        int64_t kv_heads) {
  Tensor o = tape.activation(s.batch * tokens * heads * s.head_dim * s.element);
  Tensor lse = tape.activation(s.batch * heads * tokens * kStatistic);
  if (!tape.wants({&qkv}, {})) return {o};
  const Variable y = tape.output(o);
  auto node = std::make_unique<AttentionNode>(s, qkv, y.slot);
  node->o = std::move(o);
  node->lse = std::move(lse);
  node->tokens = tokens, node->heads = heads, node->kv_heads = kv_heads;
  tape.record(std::move(node));
  return y;
}

// Keys and values go round: at each step those that visit are passed on.
void pass_on(Tape& tape, const Sizes& s, int steps, int64_t element) {
  for (int step = 0; step < steps; ++step) {
    const auto from = static_cast<size_t>((s.context_rank - step + s.cp) % s.cp);
    tape.note(Op::send, s.batch * s.tokens_of[from] * 2 * s.kv_heads * s.head_dim, element, parallel::Axis::context);
  }
}

struct RingNode final : Node {
  const Sizes& s;
  Variable qkv;
  int y;
  Tensor o, lse;
  RingNode(const Sizes& sizes, const Variable& of, int of_y) : s(sizes), qkv(of), y(of_y) {}
  void backward_input(Tape& tape) override {
    const bool first = !tape.gradient_of(qkv.slot);
    const Tensor into = first ? tape.gradient_into(qkv.slot) : tape.scratch(qkv.value->bytes());
    const Tensor dq = s.element == 4 ? into : tape.scratch(s.rows() * s.heads * s.head_dim * kStatistic);
    const int64_t keys = s.batch * s.most_tokens * 2 * s.kv_heads * s.head_dim;
    std::vector<Tensor> buffers;
    for (int i = 0; i < 2; ++i) buffers.push_back(tape.scratch(keys * s.element));
    for (int i = 0; i < 3; ++i) buffers.push_back(tape.scratch(keys * kStatistic));
    tape.scratch(workspace(s, s.tokens, s.most_tokens, s.heads, s.kv_heads));
    pass_on(tape, s, s.cp - 1, s.element);
    pass_on(tape, s, s.cp, kStatistic);
    if (!first) tape.give_gradient(qkv.slot, into);
  }
};

Variable ring_attention(Tape& tape, const Sizes& s, const Variable& qkv) {
  const int64_t count = s.rows() * s.heads * s.head_dim;
  Tensor o = tape.activation(count * s.element), lse = tape.activation(s.rows() * s.heads * kStatistic);
  {
    const Tensor running = s.element == 4 ? o : tape.scratch(count * kStatistic);
    const int64_t keys = s.batch * s.most_tokens * 2 * s.kv_heads * s.head_dim * s.element;
    const Tensor here = tape.scratch(keys), next = tape.scratch(keys);
    pass_on(tape, s, s.cp - 1, s.element);
  }
  if (!tape.wants({&qkv}, {})) return {o};
  const Variable y = tape.output(o);
  auto node = std::make_unique<RingNode>(s, qkv, y.slot);
  node->o = std::move(o);
  node->lse = std::move(lse);
  tape.record(std::move(node));
  return y;
}

// All-to-alls: x in one division becomes y in the other; back, the gradient goes the other way.
struct ExchangeNode final : Node {
  int x;
  int64_t x_bytes, out_bytes, in_bytes;
  ExchangeNode(const Variable& of, int64_t out, int64_t in)
      : x(of.slot), x_bytes(of.value->bytes()), out_bytes(out), in_bytes(in) {}
  void backward_input(Tape& tape) override {
    const Tensor dx = tape.activation(x_bytes);
    const Tensor out = out_bytes > 0 ? tape.scratch(out_bytes) : Tensor();
    const Tensor in = in_bytes > 0 ? tape.scratch(in_bytes) : Tensor();
    tape.give_gradient(x, dx);
  }
};

Variable exchange(Tape& tape, const Sizes& s, const Variable& x, int64_t bytes, bool to_heads) {
  Variable y{tape.activation(bytes)};
  // With one sequence rows are contiguous on the side of whole sequences.
  const int64_t split = s.batch == 1 ? 0 : bytes, whole = x.value->bytes();
  {
    const Tensor out = to_heads || s.batch > 1 ? tape.scratch(whole) : Tensor();
    const Tensor in = !to_heads || s.batch > 1 ? tape.scratch(bytes) : Tensor();
  }
  if (!tape.wants({&x}, {})) return y;
  y = tape.output(y.value);
  tape.record(std::make_unique<ExchangeNode>(x, to_heads ? split : whole, to_heads ? whole : split));
  return y;
}

Variable attention(Tape& tape, const Sizes& s, const Variable& qkv) {
  Variable turned = qkv;
  const bool divided = s.cp > 1;
  // A place of a zig-zag holds two runs of tokens, turned one after the other.
  if (s.rotary)
    for (int run = 0; run < (divided && !s.ulysses && s.causal ? 2 : 1); ++run) turned = rotary(tape, turned);
  if (!divided) return self_attention(tape, s, turned, s.tokens, s.heads, s.kv_heads);
  if (!s.ulysses) return ring_attention(tape, s, turned);
  const int64_t heads = s.heads / s.cp, kv_heads = std::max<int64_t>(1, s.kv_heads / s.cp);
  const Variable whole =
      exchange(tape, s, turned, s.batch * s.length * (heads + 2 * kv_heads) * s.head_dim * s.element, true);
  const Variable o = self_attention(tape, s, whole, s.length, heads, kv_heads);
  return exchange(tape, s, o, s.rows() * s.heads * s.head_dim * s.element, false);
}

// --- a block ---

struct Stream {
  Variable x, branch;
};

Stream block(Tape& tape, const Sizes& s, const BlockWeights& w, const Stream& in) {
  Stream stream;
  {
    const Normed n = norm(tape, s, in.x, in.branch, w.norm1, w.norm1_bias);
    const int64_t width = (s.heads + 2 * s.kv_heads) * s.head_dim;
    const Variable mixed = attention(tape, s, columns(tape, s, n.y, width, w.qkv, w.qkv_bias));
    stream = {n.sum, dropout(tape, s, rows(tape, s, mixed, w.out, w.out_bias))};
  }
  const Normed n = norm(tape, s, stream.x, stream.branch, w.norm2, w.norm2_bias);
  return {n.sum, dropout(tape, s, perceptron(tape, s, n.y, w))};
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
      const Variable out = close(*inner, block(*inner, s, w, {in, {}}));
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
  Variable y = close(tape, block(tape, s, w, {Variable{x.value}, {}}));
  tape.noting = nullptr;
  tape.set_recording(true);
  y = tape.output(y.value);
  auto node = std::make_unique<RecomputeNode>(s, w, x);
  node->y = y.slot;
  node->weights = std::move(noted);
  tape.record(std::move(node));
  return y;
}

// --- ends ---

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
  if (s.recompute_full) {
    Variable y = x;
    for (const BlockWeights& one : w) y = run_again(tape, s, one, y);
    return y;
  }
  Stream stream{x, {}};
  for (const BlockWeights& one : w) stream = block(tape, s, one, stream);
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
  const int64_t block = autograd::rows_of_block(rows, s.all_classes * s.element);
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
