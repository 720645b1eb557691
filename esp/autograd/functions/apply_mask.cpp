#include "esp/autograd/functions/apply_mask.h"

#include "esp/kernel/softmax.h"

namespace esp::autograd {
namespace {

using device::MemoryCategory;
using tensor::Tensor;

class ApplyMaskNode final : public Node {
 public:
  ApplyMaskNode(int x, int y, Tensor mask, double scale) : x_(x), y_(y), mask_(std::move(mask)), scale_(scale) {}
  void backward_input(Tape& tape) override {
    const Tensor& dy = tape.gradient_of(y_);
    const Tensor dx = tensor::empty(tape.context(), dy.shape(), dy.dtype(), MemoryCategory::activation);
    kernel::apply_mask(dx.data(), dy.data(), mask_.as<const uint8_t>(), scale_, dy.count(), dy.dtype(),
                       tape.context().stream);
    tape.accumulate_gradient(x_, dx);
  }

 private:
  int x_, y_;
  Tensor mask_;
  double scale_;
};

}  // namespace

Variable apply_mask(Tape& tape, const Variable& x, Tensor mask, double scale) {
  ESP_CHECK(mask.count() == x.value().count() && mask.dtype() == DType::u8,
            "dropout mask: got shape {}; expected dtype u8 and the shape of x, {}", mask.shape().text(),
            x.shape().text());
  Variable y = tensor::empty(tape.context(), x.shape(), x.dtype(), MemoryCategory::activation);
  kernel::apply_mask(y.value().data(), x.value().data(), mask.as<const uint8_t>(), scale, x.value().count(), x.dtype(),
                     tape.context().stream);
  if (!tape.must_record({&x})) return y;
  y = tape.output(y.value());
  tape.record<ApplyMaskNode>(1, x.slot(), y.slot(), std::move(mask), scale);
  return y;
}

}  // namespace esp::autograd
