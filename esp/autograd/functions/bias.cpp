#include "esp/autograd/functions/bias.h"

#include "esp/autograd/functions/weights.h"
#include "esp/kernel/elementwise.h"

namespace esp::autograd {
namespace {

using tensor::Tensor;

class AddBiasNode final : public Node {
 public:
  AddBiasNode(int x, int y, Weight& b) : x_(x), y_(y), b_(b), trained_{&b} {}
  void backward_input(Tape& tape) override {
    dy_ = tape.take_gradient(y_);
    if (x_ >= 0) tape.accumulate_gradient(x_, dy_);
  }
  void backward_weight(Tape& tape) override {
    const device::Stream& stream = tape.context().stream;
    kernel::add_column_sums(gradient_to_add_to(&b_, stream), dy_.data(), dy_.rows(), dy_.dim(-1), dy_.dtype(), stream);
    dy_ = {};
  }
  std::span<Weight* const> weights() const override { return trained_.span(); }

 private:
  int x_, y_;
  Weight& b_;
  TrainedWeights trained_;
  Tensor dy_;
};

}  // namespace

Variable add_bias(Tape& tape, const Variable& x, Weight& b) {
  const Tensor bias = b.fetch_value();
  ESP_CHECK(bias.count() == x.value().dim(-1) && bias.dtype() == x.dtype(),
            "add_bias: got x with shape {}, bias with shape {}; expected one bias element per column of x and the same "
            "dtype",
            x.shape().text(), bias.shape().text());
  kernel::add_bias(x.value().data(), bias.data(), x.value().rows(), x.value().dim(-1), x.dtype(),
                   tape.context().stream);
  if (!tape.must_record({&x}, {&b})) return x;
  Variable y = tape.output(x.value());
  tape.record<AddBiasNode>(1, x.slot(), y.slot(), b);
  return y;
}

}  // namespace esp::autograd
