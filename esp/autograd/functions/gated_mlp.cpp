// Gated MLP (SwiGLU) as one tape node.
#include "esp/autograd/functions/fp8_linear.h"
#include "esp/autograd/functions/linear.h"
#include "esp/autograd/functions/linear_gemms.h"
#include "esp/autograd/functions/weights.h"
#include "esp/device/is_cuda.h"
#include "esp/kernel/cuda/activation_backward.h"

namespace esp::autograd {
namespace {

using device::MemoryCategory;
using tensor::Tensor;

const void* data_of(const Weight* weight) {
  return weight ? weight->fetch_value().data() : nullptr;
}

Tensor gate(const tensor::Context& context, const Tensor& pre) {
  Tensor hidden =
      tensor::empty(context, pre.shape().with_last(pre.dim(-1) / 2), pre.dtype(), MemoryCategory::activation);
  kernel::swiglu_forward(hidden.data(), pre.data(), pre.rows(), hidden.dim(-1), pre.dtype(), context.stream);
  return hidden;
}

class GatedMlpNode final : public Node {
 public:
  GatedMlpNode(const Variable& x, int y, Tensor pre, Tensor hidden, Weight& w1, Weight* b1, Weight& w2, Weight* b2)
      : x_(x),
        y_(y),
        pre_(std::move(pre)),
        hidden_(std::move(hidden)),
        w1_(w1),
        b1_(b1),
        w2_(w2),
        b2_(b2),
        trained_{&w1, b1, &w2, b2} {}

  void backward_input(Tape& tape) override {
    const tensor::Context& context = tape.context();
    const Tensor& dy = tape.gradient_of(y_);
    if (device::is_cuda(context.stream)) {
      backward_in_place(tape);
      return input_grad_gemm(context, tape.gradient_into(x_), d_pre_, w1_.fetch_value());
    }
    if (!hidden_.defined() && w2_.trained) hidden_ = gate(context, pre_);  // recomputed before pre_ is released
    {
      const Tensor d_hidden = tape.scratch(pre_.shape().with_last(pre_.dim(-1) / 2), pre_.dtype());
      input_grad_gemm(context, {d_hidden, false}, dy, w2_.fetch_value());
      d_pre_ = tensor::empty(context, pre_.shape(), pre_.dtype(), MemoryCategory::activation);
      kernel::swiglu_backward(d_pre_.data(), d_hidden.data(), pre_.data(), pre_.rows(), d_hidden.dim(-1), pre_.dtype(),
                              context.stream);
    }
    pre_ = {};
    input_grad_gemm(context, tape.gradient_into(x_), d_pre_, w1_.fetch_value());
  }
  void backward_weight(Tape& tape) override {
    weight_grad_gemm(tape.context(), w2_, b2_, hidden_, tape.gradient_of(y_), tape.column_sums_of(y_));
    hidden_ = {};
    weight_grad_gemm(tape.context(), w1_, b1_, x_.value(), d_pre_);
  }
  std::span<Weight* const> weights() const override { return trained_.span(); }

 private:
  // GPU path, which saves memory: the gradient of `pre_` overwrites `pre_`. If the gate's output `hidden_` was not
  // stored, it is recomputed and overwrites its gradient `d_hidden`.
  void backward_in_place(Tape& tape) {
    const tensor::Context& context = tape.context();
    const int64_t rows = pre_.rows(), width = pre_.dim(-1) / 2;
    Tensor d_hidden = tensor::empty(context, pre_.shape().with_last(width), pre_.dtype(), MemoryCategory::activation);
    input_grad_gemm(context, {d_hidden, false}, tape.gradient_of(y_), w2_.fetch_value());
    if (!hidden_.defined() && w2_.trained) {
      kernel::cuda::swiglu_backward_fused(d_hidden.data(), pre_.data(), rows, width, pre_.dtype(), context.stream);
      hidden_ = std::move(d_hidden);
    } else {
      kernel::swiglu_backward(pre_.data(), d_hidden.data(), pre_.data(), rows, width, pre_.dtype(), context.stream);
    }
    d_pre_ = std::exchange(pre_, {});
  }

  Variable x_;
  int y_;
  Tensor pre_, hidden_, d_pre_;
  Weight& w1_;
  Weight* b1_;
  Weight& w2_;
  Weight* b2_;
  TrainedWeights trained_;
};

}  // namespace

Variable gated_mlp(Tape& tape, const Variable& x, Weight& w1, Weight* b1, Weight& w2, Weight* b2, bool keep) {
  ESP_CHECK(w1.fetch_value().dim(1) == 2 * w2.fetch_value().dim(0),
            "gated MLP: got W1 with shape {}, W2 with shape {}; expected W1 [in, 2·hidden], W2 [hidden, out]",
            w1.value.shape().text(), w2.value.shape().text());
  const tensor::Context& context = tape.context();
  if (fp8_applicable(context, x, w1, b1) && fp8_applicable(context, x, w2, b2))
    return fp8_mlp(tape, x, {w1, b1, w2, b2, kernel::Activation::silu, true, keep});
  kernel::GemmOptions first, second;
  first.bias = data_of(b1);
  second.bias = data_of(b2);
  Tensor pre = forward_gemm(context, x.value(), w1.fetch_value(), first);
  Tensor hidden = gate(context, pre);
  Variable y = forward_gemm(context, hidden, w2.fetch_value(), second);
  if (!tape.must_record({&x}, {&w1, b1, &w2, b2})) return y;
  y = tape.output(y.value());
  if (!keep) hidden = {};
  tape.record<GatedMlpNode>(1, x, y.slot(), std::move(pre), std::move(hidden), w1, b1, w2, b2);
  return y;
}

}  // namespace esp::autograd
