#include "esp/autograd/functions/pointwise.h"

#include <cstring>

#include "esp/kernel/copy.h"
#include "esp/kernel/elementwise.h"

namespace esp::autograd {
namespace {

using device::MemoryCategory;
using kernel::Activation;
using tensor::Tensor;

class AddNode final : public Node {
 public:
  AddNode(int a, int b, int y) : a_(a), b_(b), y_(y) {}
  void backward_input(Tape& tape) override {
    const Tensor dy = tape.take_gradient(y_);
    if (a_ >= 0) tape.accumulate_gradient(a_, dy);
    if (b_ >= 0) tape.accumulate_gradient(b_, dy);
  }

 private:
  int a_, b_, y_;
};

class ActivationNode final : public Node {
 public:
  ActivationNode(const Variable& x, int y, Activation kind) : x_(x), y_(y), kind_(kind) {}
  void backward_input(Tape& tape) override {
    const GradientTarget into = tape.gradient_into(x_);
    const Tensor& dy = tape.gradient_of(y_);
    kernel::activation_backward(into.tensor.data(), dy.data(), x_.value().data(), dy.count(), kind_, into.accumulate,
                                dy.dtype(), tape.context().stream);
  }

 private:
  Variable x_;
  int y_;
  Activation kind_;
};

class SwigluNode final : public Node {
 public:
  SwigluNode(const Variable& x, int y) : x_(x), y_(y) {}
  void backward_input(Tape& tape) override {
    const Tensor& dy = tape.gradient_of(y_);
    const bool first = !tape.gradient_of(x_.slot()).defined();
    const Tensor dx = first ? tape.gradient_into(x_).tensor : tape.scratch(x_.shape(), x_.dtype());
    kernel::swiglu_backward(dx.data(), dy.data(), x_.value().data(), dy.rows(), dy.dim(-1), dy.dtype(),
                            tape.context().stream);
    if (!first) tape.accumulate_gradient(x_.slot(), dx);
  }

 private:
  Variable x_;
  int y_;
};

class DropoutNode final : public Node {
 public:
  DropoutNode(int x, int y, const kernel::DropoutShape& shape, kernel::DropoutKey key)
      : x_(x), y_(y), shape_(shape), key_(key) {}
  void backward_input(Tape& tape) override {
    const Tensor& dy = tape.gradient_of(y_);
    const Tensor dx = tensor::empty(tape.context(), dy.shape(), dy.dtype(), MemoryCategory::activation);
    kernel::dropout(dx.data(), dy.data(), nullptr, shape_, key_, dy.dtype(), tape.context().stream);
    tape.accumulate_gradient(x_, dx);
  }

 private:
  int x_, y_;
  kernel::DropoutShape shape_;
  kernel::DropoutKey key_;
};

class RotaryNode final : public Node {
 public:
  RotaryNode(int x, int y, const kernel::RotaryShape& forward) : x_(x), y_(y), shape_(forward) {
    shape_.inverse = true;
  }
  void backward_input(Tape& tape) override {
    Tensor dy = tape.gradient_into(y_).tensor;  // not shared with another tensor, so it may be rotated in place
    kernel::rotary(dy.data(), shape_, dy.dtype(), tape.context().stream);
    tape.accumulate_gradient(x_, tape.take_gradient(y_));
  }

 private:
  int x_, y_;
  kernel::RotaryShape shape_;
};

// Copies one token of every sequence between x [B, T, C] and `tokens` [B, C]. Direction: from `tokens` to x if
// `scatter` is true, else from x to `tokens`.
void copy_tokens(const Tensor& tokens, const Tensor& x, int64_t token, bool scatter, const device::Stream& stream) {
  const size_t row = static_cast<size_t>(x.dim(2)) * size_of(x.dtype()), all = static_cast<size_t>(x.dim(1)) * row;
  std::byte* in_x = x.as<std::byte>() + static_cast<size_t>(token) * row;
  if (scatter)
    kernel::copy_rows(in_x, all, tokens.data(), row, row, x.dim(0), stream);
  else
    kernel::copy_rows(tokens.data(), row, in_x, all, row, x.dim(0), stream);
}

class SelectTokenNode final : public Node {
 public:
  SelectTokenNode(const Variable& x, int y, int64_t token) : slot_(x.slot()), y_(y), shape_(x.shape()), token_(token) {}
  void backward_input(Tape& tape) override {
    const Tensor& dy = tape.gradient_of(y_);
    const Tensor dx = tensor::zeros(tape.context(), shape_, dy.dtype(), MemoryCategory::activation);
    copy_tokens(dy, dx, token_, true, tape.context().stream);
    tape.accumulate_gradient(slot_, dx);
  }

 private:
  int slot_, y_;
  tensor::Shape shape_;
  int64_t token_;
};

}  // namespace

Variable add(Tape& tape, const Variable& a, const Variable& b) {
  ESP_CHECK(a.shape() == b.shape() && a.dtype() == b.dtype(),
            "add: got a with shape {}, b with shape {}; expected equal shapes and dtypes", a.shape().text(),
            b.shape().text());
  Variable y = tensor::empty(tape.context(), a.shape(), a.dtype(), MemoryCategory::activation);
  kernel::add(y.value().data(), a.value().data(), b.value().data(), a.value().count(), a.dtype(),
              tape.context().stream);
  if (!tape.must_record({&a, &b})) return y;
  y = tape.output(y.value());
  tape.record<AddNode>(1, a.slot(), b.slot(), y.slot());
  return y;
}

Variable activation(Tape& tape, const Variable& x, Activation kind) {
  if (kind == Activation::none) return x;
  Variable y = tensor::empty(tape.context(), x.shape(), x.dtype(), MemoryCategory::activation);
  kernel::activation_forward(y.value().data(), x.value().data(), x.value().count(), kind, x.dtype(),
                             tape.context().stream);
  if (!tape.must_record({&x})) return y;
  y = tape.output(y.value());
  tape.record<ActivationNode>(1, x, y.slot(), kind);
  return y;
}

Variable swiglu(Tape& tape, const Variable& x) {
  const int64_t width = x.value().dim(-1) / 2;
  ESP_CHECK(width * 2 == x.value().dim(-1), "swiglu: got shape {}; expected an even last dimension [gate | up]",
            x.shape().text());
  Variable y = tensor::empty(tape.context(), x.shape().with_last(width), x.dtype(), MemoryCategory::activation);
  kernel::swiglu_forward(y.value().data(), x.value().data(), x.value().rows(), width, x.dtype(), tape.context().stream);
  if (!tape.must_record({&x})) return y;
  y = tape.output(y.value());
  tape.record<SwigluNode>(1, x, y.slot());
  return y;
}

Variable dropout(Tape& tape, const Variable& x, double rate, kernel::DropoutKey key, int64_t first_row) {
  if (rate == 0) return x;
  kernel::DropoutShape shape;
  shape.rows = x.value().rows();
  shape.cols = x.value().dim(-1);
  shape.first_row = first_row;
  shape.rate = rate;
  Variable y = tensor::empty(tape.context(), x.shape(), x.dtype(), MemoryCategory::activation);
  kernel::dropout(y.value().data(), x.value().data(), nullptr, shape, key, x.dtype(), tape.context().stream);
  if (!tape.must_record({&x})) return y;
  y = tape.output(y.value());
  tape.record<DropoutNode>(1, x.slot(), y.slot(), shape, key);
  return y;
}

Variable rotary(Tape& tape, const Variable& x, int64_t heads, int64_t head_dim, int64_t first_position,
                const kernel::RotaryAngles& angles) {
  return rotary_range(tape, x, heads, head_dim, 0, x.value().dim(1), first_position, angles);
}

Variable rotary_range(Tape& tape, const Variable& x, int64_t heads, int64_t head_dim, int64_t begin, int64_t end,
                      int64_t first_position, const kernel::RotaryAngles& angles) {
  ESP_CHECK(x.shape().rank() == 3, "rotary: got shape {}; expected [B, T, C]", x.shape().text());
  kernel::RotaryShape shape;
  shape.rows = x.value().rows();
  shape.row_stride = x.value().dim(-1);
  shape.heads = heads;
  shape.head_dim = head_dim;
  shape.period = x.value().dim(1);
  shape.first_position = first_position;
  shape.begin = begin;
  shape.end = end;
  shape.angles = angles;
  kernel::rotary(x.value().data(), shape, x.dtype(), tape.context().stream);
  if (!tape.must_record({&x})) return x;
  Variable y = tape.output(x.value());
  tape.record<RotaryNode>(1, x.slot(), y.slot(), shape);
  return y;
}

Variable select_token(Tape& tape, const Variable& x, int64_t token) {
  ESP_CHECK(x.shape().rank() == 3 && token < x.value().dim(1),
            "select_token: got token {}, x with shape {}; expected x [B, T, C] and token < T", token, x.shape().text());
  Variable y =
      tensor::empty(tape.context(), {x.value().dim(0), x.value().dim(2)}, x.dtype(), MemoryCategory::activation);
  copy_tokens(y.value(), x.value(), token, false, tape.context().stream);
  if (!tape.must_record({&x})) return y;
  y = tape.output(y.value());
  tape.record<SelectTokenNode>(1, x, y.slot(), token);
  return y;
}

}  // namespace esp::autograd
