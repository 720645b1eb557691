#include "esp/parallel/tp/mlp.h"

#include "esp/autograd/functions/fp8_linear.h"
#include "esp/autograd/functions/linear.h"
#include "esp/autograd/functions/linear_gemms.h"
#include "esp/autograd/functions/weights.h"
#include "esp/parallel/tp/stream_gemm.h"

namespace esp::parallel {

using autograd::GradientTarget;
using autograd::Tape;
using autograd::Variable;
using autograd::Weight;
using device::MemoryCategory;
using tensor::Tensor;

namespace {

// Between the two GEMMs: pre = x·W1 + b1 → hidden.
struct Middle {
  kernel::Activation activation;
  bool gated;

  int64_t hidden_width(const Tensor& pre) const { return pre.dim(-1) / (gated ? 2 : 1); }
  Tensor hidden_of(const tensor::Context& context, const Tensor& pre) const {
    Tensor hidden =
        tensor::empty(context, pre.shape().with_last(hidden_width(pre)), pre.dtype(), MemoryCategory::activation);
    if (gated)
      kernel::swiglu_forward(hidden.data(), pre.data(), pre.rows(), hidden.dim(-1), pre.dtype(), context.stream);
    else
      kernel::activation_forward(hidden.data(), pre.data(), pre.count(), activation, pre.dtype(), context.stream);
    return hidden;
  }
};

class DividedPerceptronNode final : public autograd::Node {
 public:
  DividedPerceptronNode(const TensorAxis& axis, StreamInput x, int y, const Middle& middle, Tensor pre, Tensor hidden,
                        const nn::MlpWeights& p)
      : axis_(axis),
        x_(std::move(x)),
        y_(y),
        middle_(middle),
        pre_(std::move(pre)),
        hidden_(std::move(hidden)),
        w1_(p.w1),
        b1_(p.b1),
        w2_(p.w2),
        trained_{&p.w1, p.b1, &p.w2} {}

  void backward_input(Tape& tape) override {
    const tensor::Context& context = tape.context();
    if (!hidden_.defined() && w2_.trained) hidden_ = middle_.hidden_of(context, pre_);  // before pre_ goes
    d_pre_ = tensor::empty(context, pre_.shape(), pre_.dtype(), MemoryCategory::activation);
    if (middle_.gated) {
      const Tensor d_hidden = tape.scratch(pre_.shape().with_last(middle_.hidden_width(pre_)), pre_.dtype());
      dy_ = gemm_from_stream(context, axis_, {d_hidden, false}, tape.gradient_of(y_), w2_.used_value());
      kernel::swiglu_backward(d_pre_.data(), d_hidden.data(), pre_.data(), pre_.rows(), d_hidden.dim(-1), pre_.dtype(),
                              context.stream);
    } else {
      kernel::GemmOptions derivative;
      derivative.activation = middle_.activation;
      derivative.pre_activation_in = pre_.data();
      dy_ = gemm_from_stream(context, axis_, {d_pre_, false}, tape.gradient_of(y_), w2_.used_value(), derivative);
    }
    pre_ = {};
    if (w1_.trained) x_.start_again(context);
    const GradientTarget into = x_.slot() >= 0 ? tape.gradient_into(x_.slot()) : GradientTarget{};
    autograd::input_grad_gemm(context, into, d_pre_, w1_.used_value());
  }
  void backward_weight(Tape& tape) override {
    weight_grad_gemm(tape.context(), w2_, nullptr, std::exchange(hidden_, {}), std::exchange(dy_, {}));
    weight_grad_gemm(tape.context(), w1_, b1_, w1_.trained ? x_.again() : Tensor(), d_pre_);
  }
  std::span<Weight* const> weights() const override { return trained_.span(); }

 private:
  TensorAxis axis_;
  StreamInput x_;
  int y_;
  Middle middle_;
  Tensor pre_, hidden_, d_pre_, dy_;
  Weight& w1_;
  Weight* b1_;
  Weight& w2_;
  autograd::TrainedWeights trained_;
};

}  // namespace

Variable mlp(Tape& tape, const TensorAxis& axis, const Variable& x, const nn::MlpWeights& p, bool keep, int64_t batch) {
  const tensor::Context& context = tape.context();
  if (autograd::fp8_enabled(context)) {  // as in linear.cpp
    const Variable all = copy_to_tp(tape, axis, x, batch);
    return reduce_from_tp(tape, axis,
                          p.gated ? autograd::gated_mlp(tape, all, p.w1, p.b1, p.w2, nullptr, keep)
                                  : autograd::mlp(tape, all, p.w1, p.b1, p.activation, p.w2, nullptr, keep));
  }
  const bool records = tape.wants({&x}, {&p.w1, p.b1, &p.w2});
  const Middle middle{p.activation, p.gated};
  const Tensor w1 = p.w1.used_value(), b1 = p.b1 ? p.b1->used_value() : Tensor();
  StreamInput in(axis, x, batch);
  const auto room = [&] {
    return tensor::empty(context, in.shape().with_last(w1.dim(1)), x.dtype(), MemoryCategory::activation);
  };
  kernel::GemmOptions first;
  first.bias = b1.data();
  Tensor pre, hidden;
  // The activation is a GEMM epilogue from 32 bits up; below, it uses the rounded argument (autograd::mlp).
  if (!p.gated && x.dtype() == tensor::accumulation_type(x.dtype())) {
    first.activation = p.activation;
    hidden = room();
    if (records) pre = room();
    first.pre_activation = pre.data();
    in.product(context, hidden, w1, first);
  } else {
    pre = room();
    in.product(context, pre, w1, first);
    hidden = middle.hidden_of(context, pre);
  }
  Variable y = gemm_to_stream(context, axis, hidden, p.w2.used_value());
  if (!records) return y;
  in.record(tape);
  y = tape.output(y.value());
  if (!keep) hidden = {};
  tape.record<DividedPerceptronNode>(1, axis, std::move(in), y.slot(), middle, std::move(pre), std::move(hidden), p);
  return y;
}

}  // namespace esp::parallel
