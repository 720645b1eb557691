#include <algorithm>

#include "esp/plan/dry_run/operators.h"

namespace esp::plan::dry_run {
namespace {

using comm::Op;

constexpr int64_t kPieceBytes = int64_t{1} << 20;  // must equal parallel::ModelParallelOptions::piece_bytes

// Backward of copy_to_tp: the input gradient of a column-parallel GEMM is all-reduced over the tensor group
// (reduce-scattered with sequence parallelism).
struct CopyToTpNode final : DryRunNode {
  const RankSizes& s;
  int x, y;
  BufferHandle all, dx;
  CopyToTpNode(const RankSizes& sizes, int of_x, int of_y) : s(sizes), x(of_x), y(of_y) {}
  void prepare(DryRunTape& tape) override {
    if (tape.gradient_of(y)) allocate(tape);
  }
  void backward_input(DryRunTape& tape) override {
    if (!dx) allocate(tape);
    all = {};
    tape.take_gradient(y);
    tape.add_gradient(x, std::move(dx));
  }
  void allocate(DryRunTape& tape) {
    all = tape.gradient_buffer(y);
    dx = s.sequence ? tape.activation(s.stream_bytes()) : all;
    tape.record_call(s.sequence ? Op::reduce_scatter : Op::all_reduce, s.rows() * s.dim, s.element_bytes);
  }
};

// The residual stream as input of a GEMM. With sequence parallelism its rows are gathered before each GEMM.
struct GemmInput {
  const RankSizes& s;
  DryRunVariable x;
  BufferHandle all;  // buffer of all rows: x itself, or the rows that backward gathered again
  int slot;
  GemmInput(const RankSizes& sizes, const DryRunVariable& of) : s(sizes), x(of), slot(of.slot) {
    if (!s.sequence) all = x.value;
  }
  void product(DryRunTape& tape) const {
    if (!s.sequence) return;
    tape.scratch(s.full_bytes());
    tape.record_call(Op::all_gather, s.rows() * s.dim, s.element_bytes);
  }
  void record(DryRunTape& tape) {
    if (s.tp == 1 || !tape.needs_gradient({&x}, {})) return;
    const int entered = tape.output(x.value, s.full_bytes()).slot;
    tape.record(std::make_unique<CopyToTpNode>(s, x.slot, entered));
    slot = entered;
  }
  void regather(DryRunTape& tape) {
    if (all) return;
    all = tape.scratch(s.full_bytes());
    tape.record_call(Op::all_gather, s.rows() * s.dim, s.element_bytes);
  }
};

BufferHandle gemm_to_stream(DryRunTape& tape, const RankSizes& s) {
  BufferHandle y = tape.activation(s.stream_bytes());
  if (s.tp == 1) return y;
  const int64_t share = s.stream_rows();
  const int64_t pieces = std::clamp<int64_t>(share * s.dim * s.element_bytes * (s.sequence ? s.tp : 1) / kPieceBytes, 1,
                                             std::min<int64_t>(4, share));
  for (int64_t i = 0; i < pieces; ++i) {
    const int64_t rows_of_piece = share * (i + 1) / pieces - share * i / pieces;
    tape.record_call(s.sequence ? Op::reduce_scatter : Op::all_reduce, rows_of_piece * (s.sequence ? s.tp : 1) * s.dim,
                     s.element_bytes);
  }
  if (!s.sequence) return y;
  // Counts the buffers of all pieces, because the last reduce-scatter may start before the first one has finished.
  std::vector<BufferHandle> moving;
  for (int64_t i = 0; i < pieces; ++i)
    moving.push_back(tape.scratch(s.tp * (share * (i + 1) / pieces - share * i / pieces) * s.dim * s.element_bytes));
  return y;
}

// Gathers all rows of the gradient dy if sequence parallelism is on; otherwise returns dy.
BufferHandle gemm_from_stream(DryRunTape& tape, const RankSizes& s, const BufferHandle& dy) {
  if (!s.sequence) return dy;
  tape.record_call(Op::all_gather, s.rows() * s.dim, s.element_bytes);
  return tape.scratch(s.full_bytes());
}

struct ColumnParallelNode final : DryRunNode {
  GemmInput x;
  int y;
  DryRunWeight *w, *b;
  ColumnParallelNode(GemmInput in, int of_y, DryRunWeight* weight, DryRunWeight* bias)
      : x(std::move(in)), y(of_y), w(weight), b(bias) {
    weights = non_null({w, b});
  }
  void backward_input(DryRunTape& tape) override {
    x.regather(tape);
    use_weight(tape, w);
    if (x.slot >= 0) tape.gradient_buffer(x.slot);
  }
  void backward_weight(DryRunTape& tape) override {
    tape.gradient(w);
    tape.gradient(b);
  }
};

struct RowParallelNode final : DryRunNode {
  const RankSizes& s;
  DryRunVariable h;
  int y;
  DryRunWeight *w, *b;
  BufferHandle dy;
  RowParallelNode(const RankSizes& sizes, const DryRunVariable& of, int of_y, DryRunWeight* weight, DryRunWeight* bias)
      : s(sizes), h(of), y(of_y), w(weight), b(bias) {
    weights = non_null({w, b});
  }
  void backward_input(DryRunTape& tape) override {
    use_weight(tape, w);
    if (h.slot >= 0) tape.gradient_buffer(h.slot);
    dy = gemm_from_stream(tape, s, tape.gradient_of(y));
  }
  void backward_weight(DryRunTape& tape) override {
    tape.gradient(w);
    tape.gradient(b);
    dy = {};
  }
};

struct MlpNode final : DryRunNode {
  const RankSizes& s;
  GemmInput x;
  int y;
  DryRunWeight *w1, *b1, *w2, *b2;
  BufferHandle pre, hidden, d_pre, dy;
  MlpNode(const RankSizes& sizes, GemmInput in) : s(sizes), x(std::move(in)) {}
  int64_t hidden_bytes() const { return s.rows() * s.ffn * s.element_bytes; }
  void backward_input(DryRunTape& tape) override {
    if (!hidden) hidden = tape.activation(hidden_bytes());
    if (s.gated && s.tp == 1) {
      const BufferHandle d_hidden = tape.scratch(hidden_bytes());
      use_weight(tape, w2);
      d_pre = tape.activation(pre->bytes());
    } else {
      d_pre = tape.activation(pre->bytes());
      const BufferHandle d_hidden = s.gated ? tape.scratch(hidden_bytes()) : BufferHandle();
      use_weight(tape, w2);
      dy = gemm_from_stream(tape, s, tape.gradient_of(y));
    }
    pre = {};
    if (s.tp > 1) x.regather(tape);
    if (x.slot >= 0) tape.gradient_buffer(x.slot);
    use_weight(tape, w1);
  }
  void backward_weight(DryRunTape& tape) override {
    tape.gradient(w2);
    tape.gradient(b2);
    hidden = {};
    dy = {};
    tape.gradient(w1);
    tape.gradient(b1);
  }
};

}  // namespace

DryRunVariable column_parallel(DryRunTape& tape, const RankSizes& s, const DryRunVariable& x, int64_t out,
                               DryRunWeight* w, DryRunWeight* b) {
  use_weight(tape, w);
  use_weight(tape, b);
  GemmInput in(s, x);
  DryRunVariable y{tape.activation(s.rows() * out * s.element_bytes)};
  in.product(tape);
  if (!tape.needs_gradient({&x}, non_null({w, b}))) return y;
  in.record(tape);
  y = tape.output(y.value);
  tape.record(std::make_unique<ColumnParallelNode>(std::move(in), y.slot, w, b));
  return y;
}

DryRunVariable row_parallel(DryRunTape& tape, const RankSizes& s, const DryRunVariable& h, DryRunWeight* w,
                            DryRunWeight* b) {
  use_weight(tape, w);
  DryRunWeight* with = s.tp == 1 ? b : nullptr;
  use_weight(tape, with);
  DryRunVariable y{gemm_to_stream(tape, s)};
  if (tape.needs_gradient({&h}, non_null({w, with}))) {
    y = tape.output(y.value);
    tape.record(std::make_unique<RowParallelNode>(s, h, y.slot, w, with));
  }
  return s.tp == 1 ? y : add_bias(tape, y, b);
}

DryRunVariable mlp(DryRunTape& tape, const RankSizes& s, const DryRunVariable& x, const BlockWeights& w, bool keep) {
  DryRunWeight* b2 = s.tp == 1 ? w.down_bias : nullptr;
  const std::vector<DryRunWeight*> all = non_null({w.up, w.up_bias, w.down, b2});
  const bool records = tape.needs_gradient({&x}, all);
  use_weight(tape, w.up);
  use_weight(tape, w.up_bias);
  GemmInput in(s, x);
  const int64_t hidden_bytes = s.rows() * s.ffn * s.element_bytes;
  BufferHandle pre, hidden;
  if (!s.gated && s.element_bytes == 4) {
    if (records) pre = tape.activation(hidden_bytes);
    hidden = tape.activation(hidden_bytes);
    in.product(tape);
  } else {
    pre = tape.activation(hidden_bytes * (s.gated ? 2 : 1));
    in.product(tape);
    // If no backward follows and tp = 1, the activation function overwrites its input.
    hidden = s.tp == 1 && !s.gated && !records ? pre : tape.activation(hidden_bytes);
  }
  use_weight(tape, w.down);
  use_weight(tape, b2);
  DryRunVariable y{gemm_to_stream(tape, s)};
  if (records) {
    in.record(tape);
    y = tape.output(y.value);
    auto node = std::make_unique<MlpNode>(s, std::move(in));
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

}  // namespace esp::plan::dry_run
