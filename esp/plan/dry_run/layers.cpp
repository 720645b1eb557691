#include "esp/plan/dry_run/layers.h"

#include <algorithm>

#include "esp/autograd/functions/cross_entropy.h"
#include "esp/plan/dry_run/operators.h"

namespace esp::plan::dry_run {
namespace {

using comm::Op;

struct DryRunStream {
  DryRunVariable x, branch;
};

DryRunStream block(DryRunTape& tape, const RankSizes& s, const BlockWeights& w, const DryRunStream& in, bool keep) {
  DryRunStream stream;
  {
    const NormOutputs n = norm(tape, s, in.x, in.branch, w.norm1, w.norm1_bias);
    const int64_t width = (s.heads + 2 * s.kv_heads) * s.head_dim;
    const DryRunVariable mixed = attention(tape, s, column_parallel(tape, s, n.y, width, w.qkv, w.qkv_bias));
    stream = {n.sum, dropout(tape, s, row_parallel(tape, s, mixed, w.out, w.out_bias))};
  }
  const NormOutputs n = norm(tape, s, stream.x, stream.branch, w.norm2, w.norm2_bias);
  return {n.sum, dropout(tape, s, mlp(tape, s, n.y, w, keep))};
}

DryRunVariable add_branch(DryRunTape& tape, const DryRunStream& stream) {
  return stream.branch.value ? add(tape, stream.x, stream.branch) : stream.x;
}

struct RecomputeNode final : DryRunNode {
  const RankSizes& s;
  const BlockWeights& w;
  DryRunVariable x;
  int y;
  std::unique_ptr<DryRunTape> inner;
  RecomputeNode(const RankSizes& sizes, const BlockWeights& of, const DryRunVariable& in) : s(sizes), w(of), x(in) {}
  void backward_input(DryRunTape& tape) override {
    inner = std::make_unique<DryRunTape>(tape.recorder(), tape.hooks());
    const DryRunVariable in = x.slot >= 0 ? inner->leaf(x.value) : DryRunVariable{x.value};
    {
      const DryRunVariable out = add_branch(*inner, block(*inner, s, w, {in, {}}, true));
      inner->add_gradient(out.slot, tape.take_gradient(y));
    }
    if (x.slot >= 0)
      if (BufferHandle gathered = tape.take_gradient(x.slot)) inner->add_gradient(in.slot, std::move(gathered));
    inner->backward_inputs();
    if (x.slot >= 0)
      if (BufferHandle made = inner->take_gradient(in.slot)) tape.add_gradient(x.slot, std::move(made));
    x = {};
  }
  void backward_weight(DryRunTape&) override {
    inner->backward_weights();
    inner.reset();
  }
};

DryRunVariable recompute_block(DryRunTape& tape, const RankSizes& s, const BlockWeights& w, const DryRunVariable& x) {
  std::vector<DryRunWeight*> noted;
  tape.set_recording(false);
  tape.recomputed_weights = &noted;
  DryRunVariable y = add_branch(tape, block(tape, s, w, {DryRunVariable{x.value}, {}}, true));
  tape.recomputed_weights = nullptr;
  tape.set_recording(true);
  y = tape.output(y.value);
  auto node = std::make_unique<RecomputeNode>(s, w, x);
  node->y = y.slot;
  node->weights = std::move(noted);
  tape.record(std::move(node));
  return y;
}

struct EmbeddingNode final : DryRunNode {
  BufferHandle ids;
  explicit EmbeddingNode(const std::vector<DryRunWeight*>& of) { weights = of; }
  void backward_weight(DryRunTape& tape) override {
    for (DryRunWeight* weight : weights) tape.gradient(weight);
  }
};

DryRunVariable embedding(DryRunTape& tape, int64_t bytes, BufferHandle ids, DryRunWeight* table,
                         DryRunWeight* positions) {
  use_weight(tape, table);
  use_weight(tape, positions);
  DryRunVariable y{tape.activation(bytes)};
  const std::vector<DryRunWeight*> all = non_null({table, positions});
  if (!tape.needs_gradient({}, all)) return y;
  y = tape.output(y.value);
  auto node = std::make_unique<EmbeddingNode>(all);
  node->ids = std::move(ids);
  tape.record(std::move(node));
  return y;
}

struct ReduceFromTpNode final : DryRunNode {
  const RankSizes& s;
  int x, y;
  ReduceFromTpNode(const RankSizes& sizes, int of_x, int of_y) : s(sizes), x(of_x), y(of_y) {}
  void backward_input(DryRunTape& tape) override {
    BufferHandle dy = tape.take_gradient(y);
    if (s.sequence) {
      dy = tape.activation(s.full_bytes());
      tape.record_call(Op::all_gather, s.rows() * s.dim, s.element_bytes);
    }
    tape.add_gradient(x, std::move(dy));
  }
};

struct LossNode final : DryRunNode {
  int x;
  BufferHandle dx;
  void backward_input(DryRunTape& tape) override {
    if (x >= 0) tape.add_gradient(x, std::exchange(dx, {}));
  }
};

}  // namespace

DryRunVariable stem(DryRunTape& tape, const RankSizes& s, const StemWeights& w) {
  constexpr int64_t kId = 4;
  if (s.tp == 1 && s.cp == 1) return dropout(tape, s, embedding(tape, s.full_bytes(), {}, w.table, w.positions));
  DryRunVariable x;
  if (s.tp > 1) {
    const BufferHandle own = tape.activation(s.rows() * kId);
    const DryRunVariable embedded = embedding(tape, s.full_bytes(), own, w.table, nullptr);
    x = embedded;
    if (s.sequence) x = {tape.activation(s.stream_bytes())};
    tape.record_call(s.sequence ? Op::reduce_scatter : Op::all_reduce, s.rows() * s.dim, s.element_bytes);
    x = tape.output(x.value);
    tape.record(std::make_unique<ReduceFromTpNode>(s, embedded.slot, x.slot));
  } else {
    x = embedding(tape, s.full_bytes(), {}, w.table, nullptr);
  }
  if (w.positions) {
    const BufferHandle at = tape.activation(s.stream_rows() * kId);
    x = add(tape, x, embedding(tape, s.stream_bytes(), at, w.positions, nullptr));
  }
  return dropout(tape, s, x);
}

DryRunVariable blocks(DryRunTape& tape, const RankSizes& s, const std::vector<BlockWeights>& w,
                      const DryRunVariable& x) {
  const size_t until = s.recompute_layers < 0 ? w.size() : std::min(w.size(), static_cast<size_t>(s.recompute_layers));
  DryRunVariable y = x;
  size_t i = 0;
  if (s.recompute_full)
    for (; i < until; ++i) y = recompute_block(tape, s, w[i], y);
  DryRunStream stream{y, {}};
  for (; i < w.size(); ++i) stream = block(tape, s, w[i], stream, !s.recompute_selective || i >= until);
  return add_branch(tape, stream);
}

DryRunLoss loss(DryRunTape& tape, const RankSizes& s, const HeadWeights& w, const DryRunVariable& state) {
  const DryRunVariable x = norm(tape, s, state, {}, w.norm, w.norm_bias).y;
  const int64_t rows = s.rows(), in_bytes = s.full_bytes();
  const bool divided = s.tp > 1;
  const BufferHandle all = divided && s.sequence ? tape.activation(in_bytes) : x.value;
  if (divided && s.sequence) tape.record_call(Op::all_gather, rows * s.dim, s.element_bytes);
  use_weight(tape, w.table);
  use_weight(tape, w.bias);
  BufferHandle losses = tape.activation(rows * kStatisticBytes);
  BufferHandle dx = tape.activation(in_bytes);
  const int64_t block = autograd::rows_of_block(rows, s.vocab * s.element_bytes, s.device);
  {
    const BufferHandle both = divided ? tape.scratch(2 * block * kStatisticBytes) : BufferHandle();
    const BufferHandle logits = tape.scratch(block * s.classes * s.element_bytes);
    const BufferHandle own_tops = divided ? tape.scratch(block * kStatisticBytes) : BufferHandle(),
                       tops = divided ? tape.scratch(block * kStatisticBytes) : BufferHandle();
    tape.gradient(w.table);
    tape.gradient(w.bias);
    for (int64_t first = 0; divided && first < rows; first += block) {
      const int64_t count = std::min(block, rows - first);
      tape.record_call(Op::all_reduce, count, kStatisticBytes);
      tape.record_call(Op::all_reduce, 2 * count, kStatisticBytes);
      if (!s.sequence) tape.record_call(Op::all_reduce, count * s.dim, s.element_bytes);
    }
    if (divided && s.sequence) tape.record_call(Op::reduce_scatter, rows * s.dim, s.element_bytes);
    BufferHandle total = std::make_shared<CountedBuffer>(tape.recorder(), MemoryCategory::other, 8);
    if (divided && s.sequence) dx = tape.activation(s.stream_bytes());
    DryRunVariable output = tape.output(std::move(total));
    auto node = std::make_unique<LossNode>();
    node->x = x.slot;
    node->dx = std::move(dx);
    node->weights = non_null({w.table, w.bias});
    tape.record(std::move(node));
    return {output, std::move(losses)};
  }
}

}  // namespace esp::plan::dry_run
