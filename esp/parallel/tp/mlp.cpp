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

// The activation between the two GEMMs: pre = x·W1 + b1 → hidden.
struct MlpActivation {
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

class ShardedMlpNode final : public autograd::Node {
 public:
  ShardedMlpNode(const TensorAxis& axis, StreamInput x, int y, const MlpActivation& middle, Tensor pre, Tensor hidden,
                 const nn::MlpWeights& p)
      : axis_(axis),
        x_(std::move(x)),
        y_(y),
        activation_(middle),
        pre_(std::move(pre)),
        hidden_(std::move(hidden)),
        w1_(p.w1),
        b1_(p.b1),
        w2_(p.w2),
        trained_{&p.w1, p.b1, &p.w2} {}

  void backward_input(Tape& tape) override {
    const tensor::Context& context = tape.context();
    if (!hidden_.defined() && w2_.trained) hidden_ = activation_.hidden_of(context, pre_);  // before pre_ is released
    d_pre_ = tensor::empty(context, pre_.shape(), pre_.dtype(), MemoryCategory::activation);
    if (activation_.gated) {
      const Tensor d_hidden = tape.scratch(pre_.shape().with_last(activation_.hidden_width(pre_)), pre_.dtype());
      dy_ = gemm_from_stream(context, axis_, {d_hidden, false}, tape.gradient_of(y_), w2_.fetch_value());
      kernel::swiglu_backward(d_pre_.data(), d_hidden.data(), pre_.data(), pre_.rows(), d_hidden.dim(-1), pre_.dtype(),
                              context.stream);
    } else {
      kernel::GemmOptions derivative;
      derivative.activation = activation_.activation;
      derivative.pre_activation_in = pre_.data();
      dy_ = gemm_from_stream(context, axis_, {d_pre_, false}, tape.gradient_of(y_), w2_.fetch_value(), derivative);
    }
    pre_ = {};
    if (w1_.trained) x_.start_regather(context);
    const GradientTarget into = x_.slot() >= 0 ? tape.gradient_into(x_.slot()) : GradientTarget{};
    autograd::input_grad_gemm(context, into, d_pre_, w1_.fetch_value());
  }
  void backward_weight(Tape& tape) override {
    weight_grad_gemm(tape.context(), w2_, nullptr, std::exchange(hidden_, {}), std::exchange(dy_, {}));
    weight_grad_gemm(tape.context(), w1_, b1_, w1_.trained ? x_.regathered() : Tensor(), d_pre_);
  }
  std::span<Weight* const> weights() const override { return trained_.span(); }

 private:
  TensorAxis axis_;
  StreamInput x_;
  int y_;
  MlpActivation activation_;
  Tensor pre_, hidden_, d_pre_, dy_;
  Weight& w1_;
  Weight* b1_;
  Weight& w2_;
  autograd::TrainedWeights trained_;
};

}  // namespace

Variable mlp(Tape& tape, const TensorAxis& axis, const Variable& x, const nn::MlpWeights& p, bool keep, int64_t batch) {
  const tensor::Context& context = tape.context();
  if (autograd::fp8_enabled(context)) {  // as in column_parallel_linear (linear.cpp)
    const Variable all = copy_to_tp(tape, axis, x, batch);
    return reduce_from_tp(tape, axis,
                          p.gated ? autograd::gated_mlp(tape, all, p.w1, p.b1, p.w2, nullptr, keep)
                                  : autograd::mlp(tape, all, p.w1, p.b1, p.activation, p.w2, nullptr, keep));
  }
  const bool records = tape.must_record({&x}, {&p.w1, p.b1, &p.w2});
  const MlpActivation middle{p.activation, p.gated};
  const Tensor w1 = p.w1.fetch_value(), b1 = p.b1 ? p.b1->fetch_value() : Tensor();
  StreamInput in(axis, x, batch);
  const auto room = [&] {
    return tensor::empty(context, in.shape().with_last(w1.dim(1)), x.dtype(), MemoryCategory::activation);
  };
  kernel::GemmOptions first;
  first.bias = b1.data();
  Tensor pre, hidden;
  // For types of 32 bits or more, the activation is a GEMM epilogue. For narrower types it is a separate kernel that
  // reads the rounded output of the GEMM, as in autograd::mlp.
  if (!p.gated && x.dtype() == tensor::accumulation_type(x.dtype())) {
    first.activation = p.activation;
    hidden = room();
    if (records) pre = room();
    first.pre_activation = pre.data();
    in.gemm_into(context, hidden, w1, first);
  } else {
    pre = room();
    in.gemm_into(context, pre, w1, first);
    hidden = middle.hidden_of(context, pre);
  }
  Variable y = gemm_to_stream(context, axis, hidden, p.w2.fetch_value());
  if (!records) return y;
  in.record(tape);
  y = tape.output(y.value());
  if (!keep) hidden = {};
  tape.record<ShardedMlpNode>(1, axis, std::move(in), y.slot(), middle, std::move(pre), std::move(hidden), p);
  return y;
}

}  // namespace esp::parallel
