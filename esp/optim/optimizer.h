// Optimizers over the flat units of a model's parameters: each step is one pass over memory.
//
// State is stored flat beside the values: element i of m belongs to element i of the unit (or of the range of it this
// optimizer owns: a ZeRO shard). 16-bit parameters get an fp32 master copy. One thread. Values and gradients belong to
// the parameter list, state to the optimizer.
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
  // Split master weights: of the fp32 master copy of bf16 values only the lower 16 bits are kept, 2 bytes instead of 4;
  // equal except for ties between two bf16 values (kernel/halves.h).
  bool split_master = false;
};

// A range of a unit's elements.
struct UnitRange {
  int unit = 0;
  int64_t begin = 0, end = 0;
  bool operator==(const UnitRange&) const = default;
};

// Values of a range of a unit: flat [end − begin]. If offloaded: only shape and type, plus `read`, valid until the next
// step.
struct ValueShard {
  UnitRange range;
  tensor::Tensor values;
  tensor::ReadRun read = {};
};
// The values and gradients one optimizer updates. Memory not owned by the optimizer.
struct OptimizerShard {
  UnitRange range;
  tensor::Tensor values, grads;
};

// One kind of state over one range: "m", "v", "master". If offloaded, `values` is only shape and type; it is read until
// the next step (fastest in the order of the states), and written completely, all states in that order.
struct OptimizerState {
  std::string_view slot;
  UnitRange range;
  tensor::Tensor values;  // flat [end − begin], in the master type
  tensor::ReadRun read = {};
  std::function<void(const tensor::Tensor& from)> write = {};
  tensor::Tensor raw = {};  // underlying memory of a state stored in another form
  // The stored memory, for bitwise comparison or copying.
  const tensor::Tensor& memory() const { return raw.defined() ? raw : values; }
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // Updates every owned element from its gradient times `grad_scale`.
  virtual void step(double lr, double grad_scale) = 0;
  virtual std::span<OptimizerState> states() = 0;  // for checkpoints; restore through `values` or `write`,
  virtual void states_restored() {}                // then call states_restored(), after loading the model's values
  virtual int64_t num_steps() const = 0;
  virtual void set_num_steps(int64_t steps) = 0;
  // Recreates the master copies after values were loaded or initialised.
  virtual void refresh_master() = 0;
};

// All units of a materialised list.
std::vector<OptimizerShard> all_units(const nn::ParameterList& parameters);

// Allocates state from the context's pool. The list (its shapes and decay flags) and the context outlive the optimizer.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options, const nn::ParameterList& parameters,
                                          const tensor::Context& context, std::vector<OptimizerShard> owned);
std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options, const nn::ParameterList& parameters,
                                          const tensor::Context& context);  // over everything
std::vector<std::string_view> optimizer_names();

}  // namespace esp::optim
