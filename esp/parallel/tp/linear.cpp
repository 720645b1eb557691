// Column-parallel and row-parallel linear layers (tensor parallelism) as nodes on the tape. Megatron-LM calls them
// ColumnParallelLinear and RowParallelLinear.
#include "esp/parallel/tp/linear.h"

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

// Column parallel: y = x·W + b, where this rank holds some columns of W. Backward computes the partial gradient of x;
// the node of copy_to_tp sums it over the tensor-parallel ranks.
class ColumnParallelNode final : public autograd::Node {
 public:
  ColumnParallelNode(StreamInput x, int y, Weight& w, Weight* b)
      : x_(std::move(x)), y_(y), w_(w), b_(b), trained_{&w, b} {}

  void backward_input(Tape& tape) override {
    if (w_.trained) x_.start_regather(tape.context());
    const GradientTarget into = x_.slot() >= 0 ? tape.gradient_into(x_.slot()) : GradientTarget{};
    autograd::input_grad_gemm(tape.context(), into, tape.gradient_of(y_), w_.fetch_value());
  }
  void backward_weight(Tape& tape) override {
    weight_grad_gemm(tape.context(), w_, b_, w_.trained ? x_.regathered() : Tensor(), tape.gradient_of(y_));
  }
  std::span<Weight* const> weights() const override { return trained_.span(); }

 private:
  StreamInput x_;
  int y_;
  Weight& w_;
  Weight* b_;
  autograd::TrainedWeights trained_;
};

// Row parallel: y = h·W, where this rank holds some rows of W. Forward sums y over the tensor-parallel ranks. Backward
// needs no sum; with sequence parallelism it all-gathers the rows of dy.
class RowParallelNode final : public autograd::Node {
 public:
  RowParallelNode(const TensorAxis& axis, const Variable& h, int y, Weight& w)
      : axis_(axis), h_(h), y_(y), w_(w), trained_{&w} {}

  void backward_input(Tape& tape) override {
    dy_ = gemm_from_stream(tape.context(), axis_, tape.gradient_into(h_), tape.gradient_of(y_), w_.fetch_value());
  }
  void backward_weight(Tape& tape) override {
    weight_grad_gemm(tape.context(), w_, nullptr, h_.value(), std::exchange(dy_, {}));
  }
  std::span<Weight* const> weights() const override { return trained_.span(); }

 private:
  TensorAxis axis_;
  Variable h_;
  int y_;
  Weight& w_;
  autograd::TrainedWeights trained_;
  Tensor dy_;  // gradient of the output, all rows; kept from backward_input to backward_weight
};

}  // namespace

// In fp8, column-parallel and row-parallel layers use autograd's GEMM, and the collectives do not overlap with it. Each
// rank checks whether its shard supports fp8; the collectives are the same in both cases.
Variable column_parallel_linear(Tape& tape, const TensorAxis& axis, const Variable& x, Weight& w, Weight* b,
                                int64_t batch) {
  if (autograd::fp8_enabled(tape.context())) return autograd::linear(tape, copy_to_tp(tape, axis, x, batch), w, b);
  const Tensor matrix = w.fetch_value(), bias = b ? b->fetch_value() : Tensor();
  StreamInput in(axis, x, batch);
  kernel::GemmOptions options;
  options.bias = bias.data();
  Variable y =
      tensor::empty(tape.context(), in.shape().with_last(matrix.dim(1)), x.dtype(), MemoryCategory::activation);
  in.gemm_into(tape.context(), y.value(), matrix, options);
  if (!tape.must_record({&x}, {&w, b})) return y;
  in.record(tape);
  y = tape.output(y.value());
  tape.record<ColumnParallelNode>(1, std::move(in), y.slot(), w, b);
  return y;
}

Variable row_parallel_linear(Tape& tape, const TensorAxis& axis, const Variable& h, Weight& w) {
  if (autograd::fp8_enabled(tape.context())) return reduce_from_tp(tape, axis, autograd::linear(tape, h, w, nullptr));
  Variable y = gemm_to_stream(tape.context(), axis, h.value(), w.fetch_value());
  if (!tape.must_record({&h}, {&w})) return y;
  y = tape.output(y.value());
  tape.record<RowParallelNode>(1, axis, h, y.slot(), w);
  return y;
}

}  // namespace esp::parallel
