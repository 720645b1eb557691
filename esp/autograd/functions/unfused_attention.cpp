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

// Where head h of sequence b lies in qkv, in the output and in the T×T matrices.
struct Place {
  int64_t b, h, q, k, v, o, matrix;
};

struct Sizes {
  AttentionArgs o;
  int64_t B = 0, T = 0, row = 0, out_row = 0, group = 1;
  double scale = 1;

  Sizes(const Tensor& qkv, const AttentionArgs& options)
      : o(options),
        B(qkv.dim(0)),
        T(qkv.dim(1)),
        row(qkv.dim(2)),
        out_row(options.heads * options.head_dim),
        group(options.heads / options.kv_heads),
        scale(1 / std::sqrt(static_cast<double>(options.head_dim))) {
    ESP_CHECK(row == (o.heads + 2 * o.kv_heads) * o.head_dim && o.heads % o.kv_heads == 0, "{} for {} heads of {}",
              qkv.shape().text(), o.heads, o.head_dim);
  }

  template <typename F>
  void each_head(F&& f) const {
    const int64_t D = o.head_dim;
    for (int64_t b = 0; b < B; ++b)
      for (int64_t h = 0; h < o.heads; ++h) {
        const int64_t first = b * T * row, k = o.heads + h / group;
        f(Place{b, h, first + h * D, first + k * D, first + (k + o.kv_heads) * D, b * T * out_row + h * D,
                (b * o.heads + h) * T * T});
      }
  }
  kernel::SoftmaxShape rows_of(int64_t b) const {
    const int64_t length = o.key_lengths.defined() ? static_cast<int64_t>(tensor::item(o.key_lengths, b)) : T;
    return {T, T, T, length, o.causal};
  }
  double kept_scale() const { return 1 / (1 - o.dropout); }
};

// Rows of a tensor `stride` elements apart, from element `first` on.
struct View {
  const Tensor& of;
  int64_t first, stride;
  bool transposed = false;
};

// C [m, n] = alpha·op(A)·op(B), over C or onto it.
void product(const tensor::Context& context, const View& c, const View& a, const View& b, int64_t m, int64_t n,
             int64_t k, double alpha = 1, bool onto = false) {
  kernel::GemmOptions options;
  options.transpose_a = a.transposed;
  options.transpose_b = b.transposed;
  options.lda = a.stride;
  options.ldb = b.stride;
  options.ldc = c.stride;
  options.alpha = alpha;
  options.beta = onto ? 1 : 0;
  kernel::gemm(at(c.of, c.first), at(a.of, a.first), at(b.of, b.first), m, n, k, options, c.of.dtype(), context.stream);
}

struct Kept {
  Tensor p, mask, dropped;  // [B, heads, T, T]; without dropout `dropped` is p, and there is no mask
};

// Which probabilities stay: what dropout, numbered as everywhere, leaves of ones.
void draw_masks(const Tape& tape, const Sizes& s, const Tensor& mask, DType type) {
  const tensor::Context& context = tape.context();
  const Tensor ones = tape.scratch({s.T, s.T}, type), drawn = tape.scratch({s.T, s.T}, type);
  kernel::fill(ones.data(), 1, ones.count(), type, context.stream);
  kernel::DropoutShape shape;
  shape.rows = shape.cols = s.T;
  shape.rate = s.o.dropout;
  const int64_t all_heads = s.o.all_heads ? s.o.all_heads : s.o.heads;
  s.each_head([&](const Place& place) {
    shape.first_row = ((s.o.first_sequence + place.b) * all_heads + s.o.first_head + place.h) * s.T;
    kernel::dropout(drawn.data(), ones.data(), nullptr, shape, s.o.key, type, context.stream);
    kernel::mask_of(mask.as<uint8_t>() + place.matrix, drawn.data(), drawn.count(), type, context.stream);
  });
}

Kept probabilities(const Tape& tape, const Sizes& s, const Tensor& qkv) {
  const tensor::Context& context = tape.context();
  const tensor::Shape shape{s.B, s.o.heads, s.T, s.T};
  const int64_t T = s.T, D = s.o.head_dim;
  Kept kept;
  kept.p = tensor::empty(context, shape, qkv.dtype(), MemoryCategory::activation);
  s.each_head([&](const Place& place) {
    product(context, {kept.p, place.matrix, T}, {qkv, place.q, s.row}, {qkv, place.k, s.row, true}, T, T, D, s.scale);
    kernel::softmax_forward(at(kept.p, place.matrix), s.rows_of(place.b), qkv.dtype(), context.stream);
  });
  kept.dropped = kept.p;
  if (s.o.dropout == 0) return kept;
  kept.mask = tensor::empty(context, shape, DType::u8, MemoryCategory::activation);
  draw_masks(tape, s, kept.mask, qkv.dtype());
  kept.dropped = tensor::empty(context, shape, qkv.dtype(), MemoryCategory::activation);
  kernel::apply_mask(kept.dropped.data(), kept.p.data(), kept.mask.as<const uint8_t>(), s.kept_scale(), kept.p.count(),
                     qkv.dtype(), context.stream);
  return kept;
}

class StoredAttentionNode final : public Node {
 public:
  StoredAttentionNode(const Variable& qkv, int y, Kept kept, const Sizes& sizes)
      : qkv_(qkv), y_(y), kept_(std::move(kept)), s_(sizes) {}

  void backward_input(Tape& tape) override {
    const Tensor& dy = tape.gradient_of(y_);
    const Tensor dqkv = tensor::empty(tape.context(), qkv_.shape(), qkv_.dtype(), MemoryCategory::activation);
    const Tensor d = tape.scratch({s_.T, s_.T}, qkv_.dtype());
    s_.each_head([&](const Place& place) { backward_head(tape.context(), dqkv, d, dy, place); });
    tape.give_gradient(qkv_.slot(), dqkv);
  }

 private:
  // d: of the dropped probabilities, then of the probabilities, then of the scores.
  void backward_head(const tensor::Context& context, const Tensor& dqkv, const Tensor& d, const Tensor& dy,
                     const Place& place) const {
    const int64_t T = s_.T, D = s_.o.head_dim;
    const Tensor& qkv = qkv_.value();
    const bool add = place.h % s_.group != 0;  // heads of a group share keys and values
    const View scores{d, 0, T}, scores_t{d, 0, T, true}, of_y{dy, place.o, s_.out_row};
    product(context, scores, of_y, {qkv, place.v, s_.row, true}, T, T, D);
    product(context, {dqkv, place.v, s_.row}, {kept_.dropped, place.matrix, T, true}, of_y, T, D, T, 1, add);
    if (kept_.mask.defined())
      kernel::apply_mask(d.data(), d.data(), kept_.mask.as<const uint8_t>() + place.matrix, s_.kept_scale(), T * T,
                         d.dtype(), context.stream);
    kernel::softmax_backward(d.data(), at(kept_.p, place.matrix), s_.rows_of(place.b), d.dtype(), context.stream);
    product(context, {dqkv, place.q, s_.row}, scores, {qkv, place.k, s_.row}, T, D, T, s_.scale);
    product(context, {dqkv, place.k, s_.row}, scores_t, {qkv, place.q, s_.row}, T, D, T, s_.scale, add);
  }

  Variable qkv_;
  int y_;
  Kept kept_;
  Sizes s_;
};

}  // namespace

Variable unfused_attention(Tape& tape, const Variable& qkv, const AttentionArgs& options) {
  ESP_CHECK(qkv.shape().rank() == 3, "[B, T, C] expected, {} given", qkv.shape().text());
  const Sizes s(qkv.value(), options);
  Kept kept = probabilities(tape, s, qkv.value());
  Variable y = tensor::empty(tape.context(), {s.B, s.T, s.out_row}, qkv.dtype(), MemoryCategory::activation);
  s.each_head([&](const Place& place) {
    product(tape.context(), {y.value(), place.o, s.out_row}, {kept.dropped, place.matrix, s.T},
            {qkv.value(), place.v, s.row}, s.T, s.o.head_dim, s.T);
  });
  if (!tape.wants({&qkv})) return y;
  y = tape.output(y.value());
  tape.record<StoredAttentionNode>(1, qkv, y.slot(), std::move(kept), s);
  return y;
}

}  // namespace esp::autograd
