#include "esp/autograd/functions/unfused_attention.h"

#include <cmath>

#include "esp/kernel/elementwise.h"
#include "esp/kernel/gemm.h"
#include "esp/kernel/softmax.h"

namespace esp::autograd {
namespace {

using device::MemoryCategory;
using tensor::Tensor;

std::byte* at(const Tensor& x, int64_t element) {
  return x.as<std::byte>() + static_cast<size_t>(element) * size_of(x.dtype());
}

// Head h of sequence b, and its element offsets: q, k and v in qkv, o in the output, and its matrix in the T×T
// matrices.
struct HeadIndex {
  int64_t b, h, q, k, v, o, matrix;
};

struct AttentionSizes {
  AttentionArgs o;
  int64_t B = 0, T = 0, row = 0, out_row = 0, group = 1;
  double scale = 1;

  AttentionSizes(const Tensor& qkv, const AttentionArgs& options)
      : o(options),
        B(qkv.dim(0)),
        T(qkv.dim(1)),
        row(qkv.dim(2)),
        out_row(options.heads * options.head_dim),
        group(options.heads / options.kv_heads),
        scale(1 / std::sqrt(static_cast<double>(options.head_dim))) {
    ESP_CHECK(
        row == (o.heads + 2 * o.kv_heads) * o.head_dim && o.heads % o.kv_heads == 0,
        "unfused attention: got qkv with shape {}; expected a last dimension [q | k | v] for heads = {}, kv_heads "
        "= {}, head_dim = {}",
        qkv.shape().text(), o.heads, o.kv_heads, o.head_dim);
  }

  template <typename F>
  void each_head(F&& f) const {
    const int64_t D = o.head_dim;
    for (int64_t b = 0; b < B; ++b)
      for (int64_t h = 0; h < o.heads; ++h) {
        const int64_t first = b * T * row, k = o.heads + h / group;
        f(HeadIndex{b, h, first + h * D, first + k * D, first + (k + o.kv_heads) * D, b * T * out_row + h * D,
                    (b * o.heads + h) * T * T});
      }
  }
  kernel::SoftmaxShape rows_of(int64_t b) const {
    const int64_t length = o.key_lengths.defined() ? static_cast<int64_t>(tensor::item(o.key_lengths, b)) : T;
    return {T, T, T, length, o.causal};
  }
  double keep_scale() const { return 1 / (1 - o.dropout); }
};

// A matrix inside a tensor: starts at element `first`; rows are `stride` elements apart.
struct MatrixView {
  const Tensor& of;
  int64_t first, stride;
  bool transposed = false;
};

// C [m, n] = alpha·op(A)·op(B). If `accumulate`, the result is added to C.
void gemm_views(const tensor::Context& context, const MatrixView& c, const MatrixView& a, const MatrixView& b,
                int64_t m, int64_t n, int64_t k, double alpha = 1, bool accumulate = false) {
  kernel::GemmOptions options;
  options.transpose_a = a.transposed;
  options.transpose_b = b.transposed;
  options.lda = a.stride;
  options.ldb = b.stride;
  options.ldc = c.stride;
  options.alpha = alpha;
  options.beta = accumulate ? 1 : 0;
  kernel::gemm(at(c.of, c.first), at(a.of, a.first), at(b.of, b.first), m, n, k, options, c.of.dtype(), context.stream);
}

struct SavedTensors {
  Tensor p, mask, dropped;  // each [B, heads, T, T]; without dropout there is no mask, and `dropped` is p
};

// Draws the dropout masks: applies dropout to a matrix of ones and marks the elements that are not zero. Uses the same
// global dropout indices as fused attention.
void draw_masks(const Tape& tape, const AttentionSizes& s, const Tensor& mask, DType type) {
  const tensor::Context& context = tape.context();
  const Tensor ones = tape.scratch({s.T, s.T}, type), drawn = tape.scratch({s.T, s.T}, type);
  kernel::fill(ones.data(), 1, ones.count(), type, context.stream);
  kernel::DropoutShape shape;
  shape.rows = shape.cols = s.T;
  shape.rate = s.o.dropout;
  const int64_t all_heads = s.o.all_heads ? s.o.all_heads : s.o.heads;
  s.each_head([&](const HeadIndex& head) {
    shape.first_row = ((s.o.first_sequence + head.b) * all_heads + s.o.first_head + head.h) * s.T;
    kernel::dropout(drawn.data(), ones.data(), nullptr, shape, s.o.key, type, context.stream);
    kernel::nonzero_mask(mask.as<uint8_t>() + head.matrix, drawn.data(), drawn.count(), type, context.stream);
  });
}

SavedTensors probabilities(const Tape& tape, const AttentionSizes& s, const Tensor& qkv) {
  const tensor::Context& context = tape.context();
  const tensor::Shape shape{s.B, s.o.heads, s.T, s.T};
  const int64_t T = s.T, D = s.o.head_dim;
  SavedTensors kept;
  kept.p = tensor::empty(context, shape, qkv.dtype(), MemoryCategory::activation);
  s.each_head([&](const HeadIndex& head) {
    gemm_views(context, {kept.p, head.matrix, T}, {qkv, head.q, s.row}, {qkv, head.k, s.row, true}, T, T, D, s.scale);
    kernel::softmax_forward(at(kept.p, head.matrix), s.rows_of(head.b), qkv.dtype(), context.stream);
  });
  kept.dropped = kept.p;
  if (s.o.dropout == 0) return kept;
  kept.mask = tensor::empty(context, shape, DType::u8, MemoryCategory::activation);
  draw_masks(tape, s, kept.mask, qkv.dtype());
  kept.dropped = tensor::empty(context, shape, qkv.dtype(), MemoryCategory::activation);
  kernel::apply_mask(kept.dropped.data(), kept.p.data(), kept.mask.as<const uint8_t>(), s.keep_scale(), kept.p.count(),
                     qkv.dtype(), context.stream);
  return kept;
}

class UnfusedAttentionNode final : public Node {
 public:
  UnfusedAttentionNode(const Variable& qkv, int y, SavedTensors kept, const AttentionSizes& sizes)
      : qkv_(qkv), y_(y), kept_(std::move(kept)), s_(sizes) {}

  void backward_input(Tape& tape) override {
    const Tensor& dy = tape.gradient_of(y_);
    const Tensor dqkv = tensor::empty(tape.context(), qkv_.shape(), qkv_.dtype(), MemoryCategory::activation);
    const Tensor d = tape.scratch({s_.T, s_.T}, qkv_.dtype());
    s_.each_head([&](const HeadIndex& head) { backward_head(tape.context(), dqkv, d, dy, head); });
    tape.accumulate_gradient(qkv_.slot(), dqkv);
  }

 private:
  // `d` holds three gradients one after another: the gradient of the probabilities after dropout, then of the
  // probabilities, then of the scores.
  void backward_head(const tensor::Context& context, const Tensor& dqkv, const Tensor& d, const Tensor& dy,
                     const HeadIndex& head) const {
    const int64_t T = s_.T, D = s_.o.head_dim;
    const Tensor& qkv = qkv_.value();
    // Grouped-query attention: the heads of a group share keys and values, so all but the first head of a group add to
    // the gradients of k and v.
    const bool add = head.h % s_.group != 0;
    const MatrixView scores{d, 0, T}, scores_t{d, 0, T, true}, of_y{dy, head.o, s_.out_row};
    gemm_views(context, scores, of_y, {qkv, head.v, s_.row, true}, T, T, D);
    gemm_views(context, {dqkv, head.v, s_.row}, {kept_.dropped, head.matrix, T, true}, of_y, T, D, T, 1, add);
    if (kept_.mask.defined())
      kernel::apply_mask(d.data(), d.data(), kept_.mask.as<const uint8_t>() + head.matrix, s_.keep_scale(), T * T,
                         d.dtype(), context.stream);
    kernel::softmax_backward(d.data(), at(kept_.p, head.matrix), s_.rows_of(head.b), d.dtype(), context.stream);
    gemm_views(context, {dqkv, head.q, s_.row}, scores, {qkv, head.k, s_.row}, T, D, T, s_.scale);
    gemm_views(context, {dqkv, head.k, s_.row}, scores_t, {qkv, head.q, s_.row}, T, D, T, s_.scale, add);
  }

  Variable qkv_;
  int y_;
  SavedTensors kept_;
  AttentionSizes s_;
};

}  // namespace

Variable unfused_attention(Tape& tape, const Variable& qkv, const AttentionArgs& options) {
  ESP_CHECK(qkv.shape().rank() == 3, "unfused attention: got qkv with shape {}; expected [B, T, C]",
            qkv.shape().text());
  const AttentionSizes s(qkv.value(), options);
  SavedTensors kept = probabilities(tape, s, qkv.value());
  Variable y = tensor::empty(tape.context(), {s.B, s.T, s.out_row}, qkv.dtype(), MemoryCategory::activation);
  s.each_head([&](const HeadIndex& head) {
    gemm_views(tape.context(), {y.value(), head.o, s.out_row}, {kept.dropped, head.matrix, s.T},
               {qkv.value(), head.v, s.row}, s.T, s.o.head_dim, s.T);
  });
  if (!tape.must_record({&qkv})) return y;
  y = tape.output(y.value());
  tape.record<UnfusedAttentionNode>(1, qkv, y.slot(), std::move(kept), s);
  return y;
}

}  // namespace esp::autograd
