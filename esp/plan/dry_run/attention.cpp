#include <algorithm>

#include "esp/kernel/attention.h"
#include "esp/plan/dry_run/operators.h"

namespace esp::plan::dry_run {
namespace {

using comm::Op;

int64_t workspace(const RankSizes& s, int64_t queries, int64_t keys, int64_t heads, int64_t kv_heads) {
  kernel::AttentionShape shape;
  shape.batch = s.batch;
  shape.num_queries = queries;
  shape.num_keys = keys;
  shape.heads = heads;
  shape.kv_heads = kv_heads;
  shape.head_dim = s.head_dim;
  shape.causal = s.causal;
  const int64_t one = kernel::attention_workspace_bytes(shape, DType::f32, {});
  const int64_t alignment = 64;  // counted once; the other bytes are per thread
  return alignment + (one - alignment) * s.threads;
}

struct AttentionNode final : DryRunNode {
  const RankSizes& s;
  DryRunVariable qkv;
  int y;
  BufferHandle o, lse;
  int64_t tokens, heads, kv_heads;
  AttentionNode(const RankSizes& sizes, const DryRunVariable& of, int of_y) : s(sizes), qkv(of), y(of_y) {}
  void backward_input(DryRunTape& tape) override {
    const bool first = !tape.gradient_of(qkv.slot);
    const BufferHandle into = first ? tape.gradient_buffer(qkv.slot) : tape.scratch(qkv.value->bytes());
    tape.scratch(workspace(s, tokens, tokens, heads, kv_heads));
    if (!first) tape.add_gradient(qkv.slot, into);
  }
};

DryRunVariable self_attention(DryRunTape& tape, const RankSizes& s, const DryRunVariable& qkv, int64_t tokens,
                              int64_t heads, int64_t kv_heads) {
  BufferHandle o = tape.activation(s.batch * tokens * heads * s.head_dim * s.element_bytes);
  BufferHandle lse = tape.activation(s.batch * heads * tokens * kStatisticBytes);
  if (!tape.needs_gradient({&qkv}, {})) return {o};
  const DryRunVariable y = tape.output(o);
  auto node = std::make_unique<AttentionNode>(s, qkv, y.slot);
  node->o = std::move(o);
  node->lse = std::move(lse);
  node->tokens = tokens, node->heads = heads, node->kv_heads = kv_heads;
  tape.record(std::move(node));
  return y;
}

// Ring attention: in every step the rank sends the keys and values that it has just used to the next rank.
void record_ring_sends(DryRunTape& tape, const RankSizes& s, int steps, int64_t element_bytes) {
  for (int step = 0; step < steps; ++step) {
    const auto from = static_cast<size_t>((s.context_rank - step + s.cp) % s.cp);
    tape.record_call(Op::send, s.batch * s.tokens_of[from] * 2 * s.kv_heads * s.head_dim, element_bytes,
                     parallel::MeshAxis::context);
  }
}

struct RingAttentionNode final : DryRunNode {
  const RankSizes& s;
  DryRunVariable qkv;
  int y;
  BufferHandle o, lse;
  RingAttentionNode(const RankSizes& sizes, const DryRunVariable& of, int of_y) : s(sizes), qkv(of), y(of_y) {}
  void backward_input(DryRunTape& tape) override {
    const bool first = !tape.gradient_of(qkv.slot);
    const BufferHandle into = first ? tape.gradient_buffer(qkv.slot) : tape.scratch(qkv.value->bytes());
    const BufferHandle dq =
        s.element_bytes == 4 ? into : tape.scratch(s.rows() * s.heads * s.head_dim * kStatisticBytes);
    const int64_t keys = s.batch * s.max_tokens * 2 * s.kv_heads * s.head_dim;
    std::vector<BufferHandle> buffers;
    for (int i = 0; i < 2; ++i) buffers.push_back(tape.scratch(keys * s.element_bytes));
    for (int i = 0; i < 3; ++i) buffers.push_back(tape.scratch(keys * kStatisticBytes));
    tape.scratch(workspace(s, s.tokens, s.max_tokens, s.heads, s.kv_heads));
    record_ring_sends(tape, s, s.cp - 1, s.element_bytes);
    record_ring_sends(tape, s, s.cp, kStatisticBytes);
    if (!first) tape.add_gradient(qkv.slot, into);
  }
};

DryRunVariable ring_attention(DryRunTape& tape, const RankSizes& s, const DryRunVariable& qkv) {
  const int64_t count = s.rows() * s.heads * s.head_dim;
  BufferHandle o = tape.activation(count * s.element_bytes),
               lse = tape.activation(s.rows() * s.heads * kStatisticBytes);
  {
    const BufferHandle running = s.element_bytes == 4 ? o : tape.scratch(count * kStatisticBytes);
    const int64_t keys = s.batch * s.max_tokens * 2 * s.kv_heads * s.head_dim * s.element_bytes;
    const BufferHandle here = tape.scratch(keys), next = tape.scratch(keys);
    record_ring_sends(tape, s, s.cp - 1, s.element_bytes);
  }
  if (!tape.needs_gradient({&qkv}, {})) return {o};
  const DryRunVariable y = tape.output(o);
  auto node = std::make_unique<RingAttentionNode>(s, qkv, y.slot);
  node->o = std::move(o);
  node->lse = std::move(lse);
  tape.record(std::move(node));
  return y;
}

// Ulysses all-to-all: converts x from shards of tokens to shards of heads, or from heads to tokens. Backward converts
// the gradient the other way.
struct AllToAllNode final : DryRunNode {
  int x;
  int64_t x_bytes, out_bytes, in_bytes;
  AllToAllNode(const DryRunVariable& of, int64_t out, int64_t in)
      : x(of.slot), x_bytes(of.value->bytes()), out_bytes(out), in_bytes(in) {}
  void backward_input(DryRunTape& tape) override {
    const BufferHandle dx = tape.activation(x_bytes);
    const BufferHandle out = out_bytes > 0 ? tape.scratch(out_bytes) : BufferHandle();
    const BufferHandle in = in_bytes > 0 ? tape.scratch(in_bytes) : BufferHandle();
    tape.add_gradient(x, dx);
  }
};

DryRunVariable all_to_all(DryRunTape& tape, const RankSizes& s, const DryRunVariable& x, int64_t bytes, bool to_heads) {
  DryRunVariable y{tape.activation(bytes)};
  // If the batch is one sequence, the rows of whole sequences are contiguous, so that side needs no copy.
  const int64_t split = s.batch == 1 ? 0 : bytes, whole = x.value->bytes();
  {
    const BufferHandle out = to_heads || s.batch > 1 ? tape.scratch(whole) : BufferHandle();
    const BufferHandle in = !to_heads || s.batch > 1 ? tape.scratch(bytes) : BufferHandle();
  }
  if (!tape.needs_gradient({&x}, {})) return y;
  y = tape.output(y.value);
  tape.record(std::make_unique<AllToAllNode>(x, to_heads ? split : whole, to_heads ? whole : split));
  return y;
}

}  // namespace

DryRunVariable attention(DryRunTape& tape, const RankSizes& s, const DryRunVariable& qkv) {
  DryRunVariable rotated = qkv;
  const bool divided = s.cp > 1;
  // With zig-zag sharding a rank holds two ranges of tokens. The rotary embedding is applied to each range separately.
  if (s.rotary)
    for (int run = 0; run < (divided && !s.ulysses && s.causal ? 2 : 1); ++run) rotated = rotary(tape, rotated);
  if (!divided) return self_attention(tape, s, rotated, s.tokens, s.heads, s.kv_heads);
  if (!s.ulysses) return ring_attention(tape, s, rotated);
  const int64_t heads = s.heads / s.cp, kv_heads = std::max<int64_t>(1, s.kv_heads / s.cp);
  const DryRunVariable whole =
      all_to_all(tape, s, rotated, s.batch * s.length * (heads + 2 * kv_heads) * s.head_dim * s.element_bytes, true);
  const DryRunVariable o = self_attention(tape, s, whole, s.length, heads, kv_heads);
  return all_to_all(tape, s, o, s.rows() * s.heads * s.head_dim * s.element_bytes, false);
}

}  // namespace esp::plan::dry_run
