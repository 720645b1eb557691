// Activation checkpointing (recomputation), also called gradient checkpointing. `recompute(tape, {x, …}, f)` computes
// y = f(tape, {x, …}) and saves only the inputs. Backward calls f again to compute the activations. Results are
// bit-identical, because kernels are deterministic and dropout masks are a function of a key (kernel/dropout.h).
//
// `f` is copied into the tape. It may capture values, or references to objects that live until the end of the step.
#pragma once

#include <array>

#include "esp/autograd/tape.h"

namespace esp::autograd {

// The tape node of activation checkpointing.
template <size_t N, typename F>
class RecomputeNode final : public Node {
 public:
  RecomputeNode(const Tape& tape, const std::array<Variable, N>& inputs, int output, F f,
                std::pair<size_t, size_t> uses)
      : tape_(tape), inputs_(inputs), output_(output), f_(std::move(f)), uses_(uses) {}

  void backward_input(Tape& tape) override {
    inner_ = tape.borrow_tape();
    inner_->set_recording(true);
    std::array<Variable, N> x;
    for (size_t i = 0; i < N; ++i)
      x[i] = inputs_[i].needs_grad() ? inner_->leaf(inputs_[i].value()) : Variable(inputs_[i].value());
    inner_->seed(f_(*inner_, x), tape.take_gradient(output_));
    // Gradients that the inputs already have are moved to the inner tape. The inner tape adds the new gradients to
    // them, in the same order as without recomputation.
    for (size_t i = 0; i < N; ++i) move_gradient(tape, inputs_[i], *inner_, x[i]);
    inner_->backward_inputs();
    for (size_t i = 0; i < N; ++i) move_gradient(*inner_, x[i], tape, inputs_[i]);
    inputs_ = {};
    if (weights().empty()) tape.return_tape(std::move(inner_));
  }

  void backward_weight(Tape& tape) override {
    inner_->backward_weights();
    tape.return_tape(std::move(inner_));
  }
  std::span<Weight* const> weights() const override { return tape_.tracked_weights(uses_); }

 private:
  static void move_gradient(Tape& from, const Variable& source, Tape& to, const Variable& target) {
    if (!source.needs_grad()) return;
    if (tensor::Tensor gradient = from.take_gradient(source); gradient.defined())
      to.accumulate_gradient(target.slot(), std::move(gradient));
  }

  const Tape& tape_;
  std::array<Variable, N> inputs_;
  int output_;
  F f_;
  std::pair<size_t, size_t> uses_;
  std::unique_ptr<Tape> inner_;  // exists between backward_input and backward_weight
};

// Calls f now, and again in backward.
template <size_t N, typename F>
Variable recompute(Tape& tape, const std::array<Variable, N>& inputs, F f) {
  if (!tape.recording()) return f(tape, inputs);
  std::array<Variable, N> constants;
  bool needed = false;
  for (size_t i = 0; i < N; ++i) {
    constants[i] = Variable(inputs[i].value());
    needed = needed || inputs[i].needs_grad();
  }
  tape.start_weight_tracking();
  Variable y = f(tape, constants);
  const auto uses = tape.stop_weight_tracking();
  if (!needed && tape.tracked_weights(uses).empty()) return y;
  y = tape.output(y.value());
  tape.record<RecomputeNode<N, F>>(1, tape, inputs, y.slot(), std::move(f), uses);
  return y;
}

template <typename F>  // one input: f(tape, x)
Variable recompute(Tape& tape, const Variable& x, F f) {
  auto of_one = [f = std::move(f)](Tape& t, const std::array<Variable, 1>& inputs) { return f(t, inputs[0]); };
  return recompute(tape, std::array<Variable, 1>{x}, std::move(of_one));
}

}  // namespace esp::autograd
