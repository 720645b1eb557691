#include "esp/autograd/functions/linear.h"

#include "esp/autograd/functions/fp8_linear.h"
#include "esp/autograd/functions/linear_gemms.h"
#include "esp/autograd/functions/weights.h"
#include "esp/device/is_cuda.h"
#include "esp/kernel/cuda/activation_backward.h"

namespace esp::autograd {
namespace {

using kernel::Activation;
using tensor::Tensor;

const void* data_of(const Weight* weight) {
  return weight ? weight->fetch_value().data() : nullptr;
}

class LinearNode final : public Node {
 public:
  LinearNode(const Variable& x, int y, Weight& w, Weight* b) : x_(x), y_(y), w_(w), b_(b), trained_{&w, b} {}

  void backward_input(Tape& tape) override {
    input_grad_gemm(tape.context(), tape.gradient_into(x_), tape.gradient_of(y_), w_.fetch_value());
  }
  void backward_weight(Tape& tape) override {
    weight_grad_gemm(tape.context(), w_, b_, x_.value(), tape.gradient_of(y_), tape.column_sums_of(y_));
  }
  std::span<Weight* const> weights() const override { return trained_.span(); }

 private:
  Variable x_;
  int y_;
  Weight& w_;
  Weight* b_;
  TrainedWeights trained_;
};

class MlpNode final : public Node {
 public:
  MlpNode(const Variable& x, int y, Tensor pre, Tensor hidden, Weight& w1, Weight* b1, Activation activation,
          Weight& w2, Weight* b2)
      : x_(x),
        y_(y),
        pre_(std::move(pre)),
        hidden_(std::move(hidden)),
        w1_(w1),
        b1_(b1),
        activation_(activation),
        w2_(w2),
        b2_(b2),
        trained_{&w1, b1, &w2, b2} {}

  void backward_input(Tape& tape) override {
    const bool rounds = tensor::accumulation_type(pre_.dtype()) != pre_.dtype();
    if (device::is_cuda(tape.context().stream) && (hidden_.defined() ? rounds : w2_.trained))
      return backward_in_one_pass(tape);
    if (!hidden_.defined() && w2_.trained) {  // recomputed before pre_ is released
      hidden_ = tensor::empty(tape.context(), pre_.shape(), pre_.dtype(), device::MemoryCategory::activation);
      kernel::activation_forward(hidden_.data(), pre_.data(), pre_.count(), activation_, pre_.dtype(),
                                 tape.context().stream);
    }
    d_pre_ = tensor::empty(tape.context(), pre_.shape(), pre_.dtype(), device::MemoryCategory::activation);
    kernel::GemmOptions derivative;
    derivative.activation = activation_;
    derivative.pre_activation_in = pre_.data();
    input_grad_gemm(tape.context(), {d_pre_, false}, tape.gradient_of(y_), w2_.fetch_value(), derivative);
    pre_ = {};
    input_grad_gemm(tape.context(), tape.gradient_into(x_), d_pre_, w1_.fetch_value());
  }
  void backward_weight(Tape& tape) override {
    weight_grad_gemm(tape.context(), w2_, b2_, hidden_, tape.gradient_of(y_), tape.column_sums_of(y_));
    hidden_ = {};
    weight_grad_gemm(tape.context(), w1_, b1_done_ ? nullptr : b1_, x_.value(), d_pre_);
  }
  std::span<Weight* const> weights() const override { return trained_.span(); }

 private:
  // GPU path. After a plain GEMM, one kernel multiplies the gradient by the activation's derivative in place and
  // computes its column sums. It also recomputes the activation's output if that was not stored. For 16-bit types this
  // is faster than a GEMM with a derivative epilogue and a separate pass for the sums. Rounding is the same as with
  // recomputation.
  void backward_in_one_pass(Tape& tape) {
    const tensor::Context& context = tape.context();
    d_pre_ = tensor::empty(context, pre_.shape(), pre_.dtype(), device::MemoryCategory::activation);
    input_grad_gemm(context, {d_pre_, false}, tape.gradient_of(y_), w2_.fetch_value());
    b1_done_ = b1_ && b1_->trained;
    const bool add = b1_done_ && beta_for(*b1_) != 0;
    const bool again = !hidden_.defined();
    kernel::cuda::activation_backward_fused(d_pre_.data(), pre_.data(), again, pre_.rows(), pre_.dim(-1), activation_,
                                            b1_done_ ? b1_->grad.data() : nullptr, add, pre_.dtype(), context.stream);
    if (again) hidden_ = std::move(pre_);
    pre_ = {};
    input_grad_gemm(context, tape.gradient_into(x_), d_pre_, w1_.fetch_value());
  }

  Variable x_;
  int y_;
  Tensor pre_, hidden_, d_pre_;
  bool b1_done_ = false;
  Weight& w1_;
  Weight* b1_;
  Activation activation_;
  Weight& w2_;
  Weight* b2_;
  TrainedWeights trained_;
};

}  // namespace

Variable linear(Tape& tape, const Variable& x, Weight& w, Weight* b) {
  if (fp8_applicable(tape.context(), x, w, b)) return fp8_linear(tape, x, w, b);
  kernel::GemmOptions options;
  options.bias = data_of(b);
  Variable y = forward_gemm(tape.context(), x.value(), w.fetch_value(), options);
  if (!tape.must_record({&x}, {&w, b})) return y;
  y = tape.output(y.value());
  tape.record<LinearNode>(1, x, y.slot(), w, b);
  return y;
}

Variable mlp(Tape& tape, const Variable& x, Weight& w1, Weight* b1, Activation activation, Weight& w2, Weight* b2,
             bool keep) {
  const tensor::Context& context = tape.context();
  if (fp8_applicable(context, x, w1, b1) && fp8_applicable(context, x, w2, b2))
    return fp8_mlp(tape, x, {w1, b1, w2, b2, activation, false, keep});
  const bool records = tape.must_record({&x}, {&w1, b1, &w2, b2});
  kernel::GemmOptions first, second;
  first.bias = data_of(b1);
  second.bias = data_of(b2);
  Tensor pre, hidden;
  if (x.dtype() == tensor::accumulation_type(x.dtype())) {
    first.activation = activation;
    if (records) {
      pre = tensor::empty(context, x.shape().with_last(w1.fetch_value().dim(1)), x.dtype(),
                          device::MemoryCategory::activation);
      first.pre_activation = pre.data();
    }
    hidden = forward_gemm(context, x.value(), w1.fetch_value(), first);
  } else {
    // For 16-bit types the activation must read the rounded value of `pre`, because backward and recomputation also
    // read the rounded value. A GEMM epilogue would use the sum before rounding. On a GPU, a GEMM that writes both
    // tensors would not be faster.
    pre = forward_gemm(context, x.value(), w1.fetch_value(), first);
    hidden = records ? tensor::empty(context, pre.shape(), pre.dtype(), device::MemoryCategory::activation) : pre;
    kernel::activation_forward(hidden.data(), pre.data(), pre.count(), activation, pre.dtype(), context.stream);
  }
  Variable y = forward_gemm(context, hidden, w2.fetch_value(), second);
  if (!records) return y;
  y = tape.output(y.value());
  if (!keep) hidden = {};
  tape.record<MlpNode>(1, x, y.slot(), std::move(pre), std::move(hidden), w1, b1, activation, w2, b2);
  return y;
}

}  // namespace esp::autograd
