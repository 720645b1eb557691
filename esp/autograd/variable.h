// A tensor in a differentiable computation: its value and the tape slot of its gradient. Cheap to copy. A variable
// without a slot is a constant.
#pragma once

#include <utility>

#include "esp/tensor/tensor.h"

namespace esp::autograd {

class Variable {
 public:
  Variable() = default;
  Variable(tensor::Tensor value) : value_(std::move(value)) {}  // a constant
  Variable(tensor::Tensor value, int slot) : value_(std::move(value)), slot_(slot) {}

  const tensor::Tensor& value() const { return value_; }
  const tensor::Shape& shape() const { return value_.shape(); }
  DType dtype() const { return value_.dtype(); }
  bool needs_grad() const { return slot_ >= 0; }
  int slot() const { return slot_; }

 private:
  tensor::Tensor value_;
  int slot_ = -1;
};

}  // namespace esp::autograd
