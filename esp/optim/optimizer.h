// Optimizers over the flat units of a model's parameters: each step is one pass over memory.
//
// State lies flat beside the values it belongs to: element i of m is about element i of the unit (or of the range of
// it this optimizer owns: a ZeRO shard). 16-bit parameters get an fp32 master copy. One thread; values and gradients
// are the parameter list's, state is the optimizer's.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "esp/nn/parameter.h"
#include "esp/tensor/tensor.h"

namespace esp::optim {

struct OptimizerOptions {
  std::string name = "adamw";
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0;
  double momentum = 0.9;  // sgd
  bool nesterov = false;
  // Of the master copy of bf16 values the half that they lack is kept: 2 bytes instead of 4, the same numbers but for
  // those half way between two values (kernel/halves.h).
  bool split_master = false;
};

// A run of a unit's elements; the whole of it by default.
struct Range {
  int unit = 0;
  int64_t begin = 0, end = 0;
  bool operator==(const Range&) const = default;
};

// Elements of a unit and where they lie: flat [end − begin]. Beyond memory: shape and type alone, and a way to read
// them until the next step.
struct Held {
  Range range;
  tensor::Tensor values;
  tensor::ReadRun read = {};
};
// And those of their gradients: what one optimizer updates. Memory the optimizer does not own.
struct Owned {
  Range range;
  tensor::Tensor values, grads;
};

// One kind of state over one range: "m", "v", "master". Where it lies beyond memory `values` is shape and type alone;
// it is read, best in the order of the states, until the next step, and written whole, every state in that order.
struct State {
  std::string_view slot;
  Range range;
  tensor::Tensor values;  // flat [end − begin], in the master type
  tensor::ReadRun read = {};
  std::function<void(const tensor::Tensor& from)> write = {};
  tensor::Tensor raw = {};  // of a state that lies in memory in another form: that memory
  // What lies in memory, to be compared or copied as it is.
  const tensor::Tensor& memory() const { return raw.defined() ? raw : values; }
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // Updates every owned element from its gradient times `grad_scale`.
  virtual void step(double lr, double grad_scale) = 0;
  virtual std::span<State> states() = 0;  // for checkpoints; writing to `values`, or `write`, restores, and
  virtual void states_restored() {}       // says so, once the model's values are loaded too
  virtual int64_t num_steps() const = 0;
  virtual void set_num_steps(int64_t steps) = 0;
  // After values were loaded or initialised: makes the master copies anew.
  virtual void refresh_master() = 0;
};

// The whole of a materialised list, unit by unit.
std::vector<Owned> everything(const nn::ParameterList& parameters);

// State is made on the context's pool. The list (whose shapes and decay count, not its memory) and the context outlive
// the optimizer.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options, const nn::ParameterList& parameters,
                                          const tensor::Context& context, std::vector<Owned> owned);
std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options, const nn::ParameterList& parameters,
                                          const tensor::Context& context);  // over everything
std::vector<std::string_view> optimizer_names();

}  // namespace esp::optim
