#include "esp/autograd/functions/norm.h"

#include "esp/autograd/functions/weights.h"
#include "esp/device/is_cuda.h"
#include "esp/kernel/cuda/norm_backward.h"

namespace esp::autograd {
namespace {

using device::MemoryCategory;
using kernel::NormKind;
using kernel::NormShape;
using tensor::Tensor;

struct Statistics {
  Tensor mean, rstd;
};

Statistics make_statistics(const tensor::Context& context, const Tensor& x, NormKind kind) {
  const DType type = tensor::accumulation_type(x.dtype());
  Statistics statistics;
  if (kind == NormKind::layer) statistics.mean = tensor::empty(context, {x.rows()}, type, MemoryCategory::activation);
  statistics.rstd = tensor::empty(context, {x.rows()}, type, MemoryCategory::activation);
  return statistics;
}

// `sum` is the slot of x + branch. Without a residual branch, `sum` is -1 and x itself is normalised.
class NormNode final : public Node {
 public:
  NormNode(const Variable& x, const Variable& branch, Tensor normalised, int sum, int y, Statistics statistics,
           Weight& gamma, Weight* beta, const NormShape& shape)
      : x_(x.slot()),
        branch_(branch.slot()),
        normalised_(std::move(normalised)),
        sum_(sum),
        y_(y),
        statistics_(std::move(statistics)),
        gamma_(gamma),
        beta_(beta),
        shape_(shape),
        trained_{&gamma, beta} {}

  void backward_input(Tape& tape) override {
    if (sum_ < 0) {
      if (x_ >= 0) add_input_gradient(tape, tape.gradient_into(x_));
      return;
    }
    // x and the branch have the same gradient as their sum. The gradient through y is added to the one that arrived
    // through the residual stream.
    Tensor sums;
    if (tape.gradient_of(y_).defined()) sums = add_input_gradient(tape, tape.gradient_into(sum_));
    const Tensor d_sum = tape.take_gradient(sum_);
    if (branch_ >= 0) {
      const bool first = !tape.gradient_of(branch_).defined();
      tape.accumulate_gradient(branch_, d_sum);
      if (first) tape.set_column_sums(branch_, std::move(sums));
    }
    if (x_ >= 0) tape.accumulate_gradient(x_, d_sum);
  }

  void backward_weight(Tape& tape) override {
    if (std::exchange(weights_done_, false)) return;
    if (const Tensor& dy = tape.gradient_of(y_); dy.defined())
      kernel::norm_backward_weight(gradient_to_add_to(&gamma_, tape.context().stream),
                                   gradient_to_add_to(beta_, tape.context().stream), dy.data(), normalised_.data(),
                                   statistics_.mean.data(), statistics_.rstd.data(), shape_, dy.dtype(),
                                   tape.context().stream);
  }
  std::span<Weight* const> weights() const override { return trained_.span(); }

 private:
  // Returns the column sums of the gradient if the kernel computed them, else an undefined tensor.
  Tensor add_input_gradient(Tape& tape, const GradientTarget& into) {
    const Tensor& dy = tape.gradient_of(y_);
    if (device::is_cuda(tape.context().stream)) {
      // Column sums of the gradient: the bias gradient of the branch's last linear layer. A model has biases in its
      // linear layers if its norms have one (beta).
      Tensor sums;
      if (branch_ >= 0 && beta_) sums = tape.scratch({shape_.dim}, DType::f32);
      if (add_all_gradients(tape, into, dy, sums)) return sums;
    }
    kernel::norm_backward_input(into.tensor.data(), dy.data(), normalised_.data(), statistics_.mean.data(),
                                statistics_.rstd.data(), gamma_.fetch_value().data(), shape_, into.accumulate,
                                dy.dtype(), tape.context().stream);
    return {};
  }

  // GPU path: one kernel computes all gradients. A separate kernel for the weight gradients would read dy and x a
  // second time. Returns false if the kernel cannot be used.
  bool add_all_gradients(Tape& tape, const GradientTarget& into, const Tensor& dy, const Tensor& sums) {
    if (!gamma_.trained || (beta_ && !beta_->trained)) return false;
    kernel::cuda::NormGradients to;
    to.dx = into.tensor.data();
    to.add_to_dx = into.accumulate;
    to.dx_sums = sums.data();
    gamma_.gradient();
    if (beta_) beta_->gradient();
    to.dgamma = gamma_.grad.data();
    to.add_to_dgamma = !gamma_.stale;
    to.dbeta = beta_ ? beta_->grad.data() : nullptr;
    to.add_to_dbeta = beta_ && !beta_->stale;
    weights_done_ =
        kernel::cuda::norm_backward(to, dy.data(), normalised_.data(), statistics_.mean.data(), statistics_.rstd.data(),
                                    gamma_.fetch_value().data(), shape_, dy.dtype(), tape.context().stream);
    if (!weights_done_) return false;
    gamma_.stale = false;
    if (beta_) beta_->stale = false;
    return true;
  }

  int x_, branch_;
  bool weights_done_ = false;
  Tensor normalised_;
  int sum_, y_;
  Statistics statistics_;
  Weight& gamma_;
  Weight* beta_;
  NormShape shape_;
  TrainedWeights trained_;
};

}  // namespace

Variable norm(Tape& tape, const Variable& x, Weight& gamma, Weight* beta, NormKind kind, double eps) {
  const tensor::Context& context = tape.context();
  const NormShape shape{kind, x.value().rows(), x.value().dim(-1), eps};
  Statistics statistics = make_statistics(context, x.value(), kind);
  Variable y = tensor::empty(context, x.shape(), x.dtype(), MemoryCategory::activation);
  kernel::norm_forward(y.value().data(), statistics.mean.data(), statistics.rstd.data(), nullptr, x.value().data(),
                       nullptr, gamma.fetch_value().data(), beta ? beta->fetch_value().data() : nullptr, shape,
                       x.dtype(), context.stream);
  if (!tape.must_record({&x}, {&gamma, beta})) return y;
  y = tape.output(y.value());
  tape.record<NormNode>(1, x, Variable(), x.value(), -1, y.slot(), std::move(statistics), gamma, beta, shape);
  return y;
}

ResidualNorm residual_norm(Tape& tape, const Variable& x, const Variable& branch, Weight& gamma, Weight* beta,
                           NormKind kind, double eps) {
  ESP_CHECK(x.shape() == branch.shape(),
            "residual addition: got x with shape {}, branch with shape {}; expected equal shapes", x.shape().text(),
            branch.shape().text());
  const tensor::Context& context = tape.context();
  const NormShape shape{kind, x.value().rows(), x.value().dim(-1), eps};
  Statistics statistics = make_statistics(context, x.value(), kind);
  Variable sum = tensor::empty(context, x.shape(), x.dtype(), MemoryCategory::activation);
  Variable y = tensor::empty(context, x.shape(), x.dtype(), MemoryCategory::activation);
  kernel::norm_forward(y.value().data(), statistics.mean.data(), statistics.rstd.data(), sum.value().data(),
                       x.value().data(), branch.value().data(), gamma.fetch_value().data(),
                       beta ? beta->fetch_value().data() : nullptr, shape, x.dtype(), context.stream);
  if (!tape.must_record({&x, &branch}, {&gamma, beta})) return {sum, y};
  sum = tape.output(sum.value());
  y = tape.output(y.value());
  tape.record<NormNode>(2, x, branch, sum.value(), sum.slot(), y.slot(), std::move(statistics), gamma, beta, shape);
  return {sum, y};
}

}  // namespace esp::autograd
