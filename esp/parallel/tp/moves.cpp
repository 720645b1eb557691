#include "esp/parallel/tp/moves.h"

namespace esp::parallel {

using autograd::Node;
using autograd::Tape;
using autograd::Variable;
using device::MemoryCategory;
using tensor::Shape;
using tensor::Tensor;

namespace {

Tensor gathered(const tensor::Context& context, Line& line, const Tensor& part, const Shape& shape) {
  Tensor all = tensor::empty(context, shape, part.dtype(), MemoryCategory::activation);
  line.run_gather(part, all);
  return all;
}

Tensor room_for_part(const tensor::Context& context, const Line& line, const Tensor& all) {
  ESP_CHECK(all.rows() % line.size() == 0, "{} rows among {}", all.rows(), line.size());
  return tensor::empty(context, {1, all.rows() / line.size(), all.dim(-1)}, all.dtype(), MemoryCategory::activation);
}

// Gradients of the product's input, summed; under way while the product's weights get theirs.
class EnterNode final : public Node {
 public:
  EnterNode(const TensorAxis& axis, int x, int y) : axis_(axis), x_(x), y_(y) {}

  void prepare(Tape& tape) override {
    if (!axis_.overlap || !tape.gradient_of(y_).defined()) return;
    make_room(tape);
    work_ = axis_.sequence ? axis_.line->start_scatter(all_, dx_) : axis_.line->start_all_reduce(dx_);
  }
  void backward_input(Tape& tape) override {
    if (dx_.defined()) {
      axis_.line->wait(work_, "gradients of a divided product's input");
    } else {
      make_room(tape);
      axis_.sequence ? axis_.line->run_scatter(all_, dx_) : axis_.line->run_all_reduce(dx_);
    }
    all_ = {};
    tape.take_gradient(y_);
    tape.give_gradient(x_, std::move(dx_));
  }

 private:
  void make_room(Tape& tape) {
    all_ = tape.gradient_into(y_).tensor;
    dx_ = axis_.sequence ? room_for_part(tape.context(), *axis_.line, all_) : all_;
  }

  TensorAxis axis_;
  int x_, y_;
  Tensor all_, dx_;
  Work work_;
};

class LeaveNode final : public Node {
 public:
  LeaveNode(const TensorAxis& axis, const Shape& shape, int x, int y) : axis_(axis), shape_(shape), x_(x), y_(y) {}
  void backward_input(Tape& tape) override {
    Tensor dy = tape.take_gradient(y_);
    if (axis_.sequence) dy = gathered(tape.context(), *axis_.line, dy, shape_);
    tape.give_gradient(x_, std::move(dy));
  }

 private:
  TensorAxis axis_;
  Shape shape_;
  int x_, y_;
};

class AllRowsNode final : public Node {
 public:
  AllRowsNode(const Line& line, int x, int y) : line_(line), x_(x), y_(y) {}
  void backward_input(Tape& tape) override {
    const Tensor& dy = tape.gradient_of(y_);
    const int64_t rows = dy.rows() / line_.size();
    const Tensor own = dy.reshape({dy.rows(), dy.dim(-1)}).slice(line_.rank() * rows, (line_.rank() + 1) * rows);
    tape.give_gradient(x_, tensor::copy_of(tape.context(), own, MemoryCategory::activation));
  }

 private:
  const Line& line_;
  int x_, y_;
};

}  // namespace

Shape shape_of_all(const TensorAxis& axis, const Tensor& x, int64_t batch) {
  if (!axis.divides_rows()) return x.shape();
  const int64_t rows = x.rows() * axis.line->size();
  ESP_CHECK(batch > 0 && rows % batch == 0, "{} rows of {} sequences", rows, batch);
  return {batch, rows / batch, x.dim(-1)};
}

int enter(Tape& tape, const TensorAxis& axis, const Variable& x, const Shape& all) {
  if (axis.alone() || !tape.wants({&x})) return x.slot();
  // A slot has a shape and a type; the value is nobody's.
  const int slot = tape.output(Tensor::over(x.value().data(), all, x.dtype())).slot();
  tape.record<EnterNode>(1, axis, x.slot(), slot);
  return slot;
}

Variable entered(Tape& tape, const TensorAxis& axis, const Variable& x, int64_t batch) {
  const Shape all = shape_of_all(axis, x.value(), batch);
  const Tensor rows = axis.divides_rows() ? gathered(tape.context(), *axis.line, x.value(), all) : x.value();
  return {rows, enter(tape, axis, x, all)};
}

Variable leave(Tape& tape, const TensorAxis& axis, const Variable& x) {
  if (axis.alone()) return x;
  Variable y = x.value();
  if (axis.sequence) {
    y = room_for_part(tape.context(), *axis.line, x.value());
    axis.line->run_scatter(x.value(), y.value());
  } else {
    axis.line->run_all_reduce(x.value());
  }
  if (!tape.wants({&x})) return y;
  y = tape.output(y.value());
  tape.record<LeaveNode>(1, axis, x.shape(), x.slot(), y.slot());
  return y;
}

Variable all_rows(Tape& tape, const TensorAxis& axis, const Variable& x, int64_t batch) {
  if (!axis.divides_rows()) return x;
  Variable y = gathered(tape.context(), *axis.line, x.value(), shape_of_all(axis, x.value(), batch));
  if (!tape.wants({&x})) return y;
  y = tape.output(y.value());
  tape.record<AllRowsNode>(1, *axis.line, x.slot(), y.slot());
  return y;
}

}  // namespace esp::parallel
