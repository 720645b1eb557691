#include "esp/parallel/tp/dropout.h"

namespace esp::parallel {

using autograd::Tape;
using autograd::Variable;
using device::MemoryCategory;
using tensor::Tensor;

namespace {

Tensor dropped(const tensor::Context& context, const Tensor& x, double rate, const kernel::DropoutKey& key,
               const StreamRows& rows) {
  Tensor y = tensor::empty(context, x.shape(), x.dtype(), MemoryCategory::activation);
  kernel::DropoutShape shape;
  shape.cols = x.dim(-1);
  shape.rate = rate;
  const size_t row_bytes = static_cast<size_t>(shape.cols) * size_of(x.dtype());
  rows.for_each_range([&](int64_t row, int64_t global, int64_t count) {
    shape.first_row = global;
    shape.rows = count;
    const size_t at = static_cast<size_t>(row) * row_bytes;
    kernel::dropout(y.as<std::byte>() + at, x.as<std::byte>() + at, nullptr, shape, key, x.dtype(), context.stream);
  });
  return y;
}

class DropoutNode final : public autograd::Node {
 public:
  DropoutNode(int x, int y, double rate, const kernel::DropoutKey& key, const StreamRows& rows)
      : x_(x), y_(y), rate_(rate), key_(key), rows_(rows) {}
  void backward_input(Tape& tape) override {
    tape.accumulate_gradient(x_, dropped(tape.context(), tape.gradient_of(y_), rate_, key_, rows_));
  }

 private:
  int x_, y_;
  double rate_;
  kernel::DropoutKey key_;
  StreamRows rows_;
};

}  // namespace

Variable dropout(Tape& tape, const Variable& x, double rate, const kernel::DropoutKey& key, const StreamRows& rows) {
  if (rate == 0) return x;
  ESP_CHECK(x.value().rows() == rows.count,
            "dropout: got {} row numbers, a stream of shape {}; expected one row number per row", rows.count,
            x.shape().text());
  Variable y = dropped(tape.context(), x.value(), rate, key, rows);
  if (!tape.must_record({&x})) return y;
  y = tape.output(y.value());
  tape.record<DropoutNode>(1, x.slot(), y.slot(), rate, key, rows);
  return y;
}

}  // namespace esp::parallel
