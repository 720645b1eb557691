#include "esp/parallel/tp/tp_mappings.h"

namespace esp::parallel {

using autograd::Node;
using autograd::Tape;
using autograd::Variable;
using device::MemoryCategory;
using tensor::Shape;
using tensor::Tensor;

namespace {

Tensor gathered(const tensor::Context& context, TpCommunicator& tp_comm, const Tensor& part, const Shape& shape) {
  Tensor all = tensor::empty(context, shape, part.dtype(), MemoryCategory::activation);
  tp_comm.run_all_gather(part, all);
  return all;
}

Tensor empty_part(const tensor::Context& context, const TpCommunicator& tp_comm, const Tensor& all) {
  ESP_CHECK(all.rows() % tp_comm.size() == 0, "sequence parallel: got {} rows; expected a multiple of the {} ranks",
            all.rows(), tp_comm.size());
  return tensor::empty(context, {1, all.rows() / tp_comm.size(), all.dim(-1)}, all.dtype(), MemoryCategory::activation);
}

// f (copy_to_tp). Backward all-reduces the input gradient of the GEMM (with sequence parallelism: reduce-scatters it)
// while the weight gradients are computed.
class CopyToTpNode final : public Node {
 public:
  CopyToTpNode(const TensorAxis& axis, int x, int y) : axis_(axis), x_(x), y_(y) {}

  void prepare(Tape& tape) override {
    if (!axis_.overlap || !tape.gradient_of(y_).defined()) return;
    allocate(tape);
    work_ = axis_.sequence ? axis_.tp_comm->start_reduce_scatter(all_, dx_) : axis_.tp_comm->start_all_reduce(dx_);
  }
  void backward_input(Tape& tape) override {
    if (dx_.defined()) {
      axis_.tp_comm->wait(work_, "input gradients of a column-parallel GEMM");
    } else {
      allocate(tape);
      axis_.sequence ? axis_.tp_comm->run_reduce_scatter(all_, dx_) : axis_.tp_comm->run_all_reduce(dx_);
    }
    all_ = {};
    tape.take_gradient(y_);
    tape.accumulate_gradient(x_, std::move(dx_));
  }

 private:
  void allocate(Tape& tape) {
    all_ = tape.gradient_into(y_).tensor;
    dx_ = axis_.sequence ? empty_part(tape.context(), *axis_.tp_comm, all_) : all_;
  }

  TensorAxis axis_;
  int x_, y_;
  Tensor all_, dx_;
  Work work_;
};

// g (reduce_from_tp). Backward is the identity; with sequence parallelism it all-gathers the gradient.
class ReduceFromTpNode final : public Node {
 public:
  ReduceFromTpNode(const TensorAxis& axis, const Shape& shape, int x, int y)
      : axis_(axis), shape_(shape), x_(x), y_(y) {}
  void backward_input(Tape& tape) override {
    Tensor dy = tape.take_gradient(y_);
    if (axis_.sequence) dy = gathered(tape.context(), *axis_.tp_comm, dy, shape_);
    tape.accumulate_gradient(x_, std::move(dy));
  }

 private:
  TensorAxis axis_;
  Shape shape_;
  int x_, y_;
};

class GatherRowsNode final : public Node {
 public:
  GatherRowsNode(const TpCommunicator& tp_comm, int x, int y) : tp_comm_(tp_comm), x_(x), y_(y) {}
  void backward_input(Tape& tape) override {
    const Tensor& dy = tape.gradient_of(y_);
    const int64_t rows = dy.rows() / tp_comm_.size();
    const Tensor own = dy.reshape({dy.rows(), dy.dim(-1)}).slice(tp_comm_.rank() * rows, (tp_comm_.rank() + 1) * rows);
    tape.accumulate_gradient(x_, tensor::copy_of(tape.context(), own, MemoryCategory::activation));
  }

 private:
  const TpCommunicator& tp_comm_;
  int x_, y_;
};

}  // namespace

Shape shape_of_all(const TensorAxis& axis, const Tensor& x, int64_t batch) {
  if (!axis.shards_rows()) return x.shape();
  const int64_t rows = x.rows() * axis.tp_comm->size();
  ESP_CHECK(batch > 0 && rows % batch == 0, "residual stream: got {} rows; expected a multiple of the {} sequences",
            rows, batch);
  return {batch, rows / batch, x.dim(-1)};
}

int copy_to_tp_slot(Tape& tape, const TensorAxis& axis, const Variable& x, const Shape& all) {
  if (axis.single_rank() || !tape.must_record({&x})) return x.slot();
  // The output slot has a shape and a type but no value.
  const int slot = tape.output(Tensor::borrow(x.value().data(), all, x.dtype())).slot();
  tape.record<CopyToTpNode>(1, axis, x.slot(), slot);
  return slot;
}

Variable copy_to_tp(Tape& tape, const TensorAxis& axis, const Variable& x, int64_t batch) {
  const Shape all = shape_of_all(axis, x.value(), batch);
  const Tensor rows = axis.shards_rows() ? gathered(tape.context(), *axis.tp_comm, x.value(), all) : x.value();
  return {rows, copy_to_tp_slot(tape, axis, x, all)};
}

Variable reduce_from_tp(Tape& tape, const TensorAxis& axis, const Variable& x) {
  if (axis.single_rank()) return x;
  Variable y = x.value();
  if (axis.sequence) {
    y = empty_part(tape.context(), *axis.tp_comm, x.value());
    axis.tp_comm->run_reduce_scatter(x.value(), y.value());
  } else {
    axis.tp_comm->run_all_reduce(x.value());
  }
  if (!tape.must_record({&x})) return y;
  y = tape.output(y.value());
  tape.record<ReduceFromTpNode>(1, axis, x.shape(), x.slot(), y.slot());
  return y;
}

Variable gather_replicated_rows(Tape& tape, const TensorAxis& axis, const Variable& x, int64_t batch) {
  if (!axis.shards_rows()) return x;
  Variable y = gathered(tape.context(), *axis.tp_comm, x.value(), shape_of_all(axis, x.value(), batch));
  if (!tape.must_record({&x})) return y;
  y = tape.output(y.value());
  tape.record<GatherRowsNode>(1, *axis.tp_comm, x.slot(), y.slot());
  return y;
}

}  // namespace esp::parallel
