#include <algorithm>

#include "esp/kernel/attention.h"
#include "esp/plan/ghost/parts.h"

namespace esp::plan::ghost {
namespace {

using comm::Op;

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

// Ring: at each step the visiting keys and values are passed on.
void pass_on(Tape& tape, const Sizes& s, int steps, int64_t element) {
  for (int step = 0; step < steps; ++step) {
    const auto from = static_cast<size_t>((s.context_rank - step + s.cp) % s.cp);
    tape.note(Op::send, s.batch * s.tokens_of[from] * 2 * s.kv_heads * s.head_dim, element,
              parallel::MeshAxis::context);
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

// All-to-all: x in one division becomes y in the other; backward reverses it for the gradient.
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

}  // namespace

Variable attention(Tape& tape, const Sizes& s, const Variable& qkv) {
  Variable turned = qkv;
  const bool divided = s.cp > 1;
  // A zig-zag rank holds two ranges of tokens, rotated one after the other.
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

}  // namespace esp::plan::ghost
