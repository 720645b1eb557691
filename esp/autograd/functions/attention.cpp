#include "esp/autograd/functions/attention.h"

#include <cmath>

namespace esp::autograd {
namespace {

using device::MemoryCategory;
using kernel::AttentionShape;
using tensor::Tensor;

std::byte* at(const Tensor& x, int64_t element) {
  return static_cast<std::byte*>(x.data()) + static_cast<size_t>(element) * size_of(x.dtype());
}

// Offsets of q, k and v in their tensors. In self attention one tensor holds all three.
struct QkvLayout {
  AttentionShape shape;
  int64_t k_at = 0, v_at = 0;  // in elements from the start of the tensor that holds keys and values
};

QkvLayout qkv_layout(const Tensor& q, const Tensor& kv, bool packed, const AttentionArgs& o) {
  const int64_t q_width = o.heads * o.head_dim, kv_width = o.kv_heads * o.head_dim;
  const int64_t expected_q = packed ? q_width + 2 * kv_width : q_width;
  ESP_CHECK(q.shape().rank() == 3 && q.dim(2) == expected_q,
            "attention queries: got shape {}; expected [B, T, {}] for {} heads with head_dim {}", q.shape().text(),
            expected_q, o.heads, o.head_dim);
  ESP_CHECK(packed || (kv.shape().rank() == 3 && kv.dim(0) == q.dim(0) && kv.dim(2) == 2 * kv_width),
            "attention keys and values: got shape {}; expected [B, Tk, 2·kv_heads·head_dim]", kv.shape().text());
  QkvLayout layout;
  AttentionShape& s = layout.shape;
  s.batch = q.dim(0);
  s.num_queries = q.dim(1);
  s.num_keys = kv.dim(1);
  s.heads = o.heads;
  s.kv_heads = o.kv_heads;
  s.head_dim = o.head_dim;
  s.q = {q.dim(1) * q.dim(2), q.dim(2)};
  s.k = s.v = {kv.dim(1) * kv.dim(2), kv.dim(2)};
  s.o = {q.dim(1) * q_width, q_width};
  s.causal = o.causal;
  s.key_lengths = o.key_lengths.defined() ? o.key_lengths.as<const int32_t>() : nullptr;
  s.scale = 1 / std::sqrt(static_cast<double>(o.head_dim));
  s.dropout = o.dropout;
  s.key = o.key;
  s.first_batch = o.first_sequence;
  s.first_head = o.first_head;
  s.all_heads = o.all_heads;
  layout.k_at = packed ? q_width : 0;
  layout.v_at = layout.k_at + kv_width;
  return layout;
}

class AttentionNode final : public Node {
 public:
  AttentionNode(const Variable& q, const Variable& kv, int y, Tensor o, Tensor lse, const QkvLayout& layout,
                Tensor key_lengths)
      : q_(q),
        kv_(kv),
        y_(y),
        o_(std::move(o)),
        lse_(std::move(lse)),
        layout_(layout),
        key_lengths_(std::move(key_lengths)) {}

  void backward_input(Tape& tape) override {
    const bool packed = !kv_.value().defined();
    const GradientTarget into_q = target(tape, q_);
    const GradientTarget into_kv = packed ? into_q : target(tape, kv_);
    const Tensor& dy = tape.gradient_of(y_);
    const Tensor& kv = packed ? q_.value() : kv_.value();
    const tensor::Context& context = tape.context();
    const DType type = dy.dtype();
    const int64_t bytes = kernel::attention_workspace_bytes(layout_.shape, type, context.stream);
    const Tensor workspace = tape.scratch({bytes}, DType::u8);
    kernel::attention_backward(into_q.tensor.data(), at(into_kv.tensor, layout_.k_at), at(into_kv.tensor, layout_.v_at),
                               dy.data(), o_.data(), q_.value().data(), at(kv, layout_.k_at), at(kv, layout_.v_at),
                               lse_.data(), workspace.data(), layout_.shape, type, context.stream);
    accumulate_copy(tape, q_, into_q);
    if (!packed) accumulate_copy(tape, kv_, into_kv);
  }

 private:
  // Gradient tensor of x for a kernel that overwrites its output. If x already has a gradient, this is scratch memory,
  // and the result is added to the gradient afterwards.
  static GradientTarget target(Tape& tape, const Variable& x) {
    if (x.needs_grad() && !tape.gradient_of(x.slot()).defined()) return tape.gradient_into(x);
    return {tape.scratch(x.shape(), x.dtype()), true};
  }
  static void accumulate_copy(Tape& tape, const Variable& x, const GradientTarget& target) {
    if (target.accumulate && x.needs_grad()) tape.accumulate_gradient(x.slot(), target.tensor);
  }

  Variable q_, kv_;  // kv_ is empty if q_ holds queries, keys and values
  int y_;
  Tensor o_, lse_;
  QkvLayout layout_;
  Tensor key_lengths_;
};

Variable attend(Tape& tape, const Variable& q, const Variable& kv, bool packed, const AttentionArgs& options) {
  const tensor::Context& context = tape.context();
  const Tensor& keys = packed ? q.value() : kv.value();
  const QkvLayout layout = qkv_layout(q.value(), keys, packed, options);
  const AttentionShape& s = layout.shape;
  Tensor o =
      tensor::empty(context, {s.batch, s.num_queries, s.heads * s.head_dim}, q.dtype(), MemoryCategory::activation);
  Tensor lse = tensor::empty(context, {s.batch, s.heads, s.num_queries}, tensor::accumulation_type(q.dtype()),
                             MemoryCategory::activation);
  kernel::attention_forward(o.data(), lse.data(), q.value().data(), at(keys, layout.k_at), at(keys, layout.v_at), s,
                            q.dtype(), context.stream);
  if (!tape.must_record({&q, &kv})) return o;
  Variable y = tape.output(o);
  tape.record<AttentionNode>(1, q, kv, y.slot(), std::move(o), std::move(lse), layout, options.key_lengths);
  return y;
}

}  // namespace

Variable self_attention(Tape& tape, const Variable& qkv, const AttentionArgs& options) {
  return attend(tape, qkv, {}, true, options);
}

Variable cross_attention(Tape& tape, const Variable& q, const Variable& kv, const AttentionArgs& options) {
  return attend(tape, q, kv, false, options);
}

}  // namespace esp::autograd
