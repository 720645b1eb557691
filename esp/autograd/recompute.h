// Activation recomputation: `recompute(tape, x, f)` runs y = f(tape, x) keeping only x, and runs it again before its
// backward. Bits are equal because kernels are deterministic and dropout is keyed (kernel/dropout.h).
//
// `f` is copied into the tape: let it capture references to what outlives the step.
#pragma once

#include "esp/autograd/tape.h"

namespace esp::autograd {

template <typename F>
class RecomputeNode final : public Node {
 public:
  RecomputeNode(const Tape& tape, const Variable& input, int output, F f, std::pair<size_t, size_t> uses)
      : tape_(tape), input_(input), output_(output), f_(std::move(f)), uses_(uses) {}

  void backward_input(Tape& tape) override {
    inner_ = tape.borrow_tape();
    inner_->set_recording(true);
    const Variable x = input_.needs_grad() ? inner_->leaf(input_.value()) : Variable(input_.value());
    const Variable y = f_(*inner_, x);
    inner_->seed(y, tape.gradient_of(output_));
    inner_->backward_inputs();
    if (x.needs_grad())
      if (tensor::Tensor dx = inner_->take_gradient(x); dx.defined()) tape.give_gradient(input_.slot(), dx);
    input_ = {};
    if (weights().empty()) tape.return_tape(std::move(inner_));
  }

  void backward_weight(Tape& tape) override {
    inner_->backward_weights();
    tape.return_tape(std::move(inner_));
  }
  std::span<Weight* const> weights() const override { return tape_.noted(uses_); }

 private:
  const Tape& tape_;
  Variable input_;
  int output_;
  F f_;
  std::pair<size_t, size_t> uses_;
  std::unique_ptr<Tape> inner_;  // between backward_input and backward_weight
};

template <typename F>
Variable recompute(Tape& tape, const Variable& x, F f) {
  if (!tape.recording()) return f(tape, x);
  tape.start_noting();
  Variable y = f(tape, Variable(x.value()));
  const auto uses = tape.stop_noting();
  if (!x.needs_grad() && tape.noted(uses).empty()) return y;
  y = tape.output(y.value());
  tape.record<RecomputeNode<F>>(1, tape, x, y.slot(), std::move(f), uses);
  return y;
}

}  // namespace esp::autograd
