// Optimizers over the flat units of a model's parameters. Each step is one pass over memory.
//
// States are stored flat in the order of the values: element i of "m" belongs to element i of the unit, or of the range
// of the unit that this optimizer owns (a ZeRO shard). 16-bit parameters get an fp32 master copy. Single-threaded. The
// parameter list owns values and gradients; the optimizer owns the states.
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
  double momentum = 0.9;  // momentum of sgd
  bool nesterov = false;
  // Split master copy for bf16 values: only the lower 16 bits of the fp32 copy are stored (2 bytes instead of 4). The
  // result equals the full copy except for ties between two bf16 values (kernel/split_master.h).
  bool split_master = false;
};

// Elements [begin, end) of a unit.
struct UnitRange {
  int unit = 0;
  int64_t begin = 0, end = 0;
  bool operator==(const UnitRange&) const = default;
};

// The values of one unit range, as a flat tensor of end − begin elements. If the values are offloaded, the tensor has
// only a shape and a type; `read` then returns the values, which are valid until the next step.
struct ValueShard {
  UnitRange range;
  tensor::Tensor values;
  tensor::OffloadReader read = {};
};
// The values and gradients of one range that an optimizer updates. The optimizer does not own their memory.
struct OptimizerShard {
  UnitRange range;
  tensor::Tensor values, grads;
};

// One optimizer state ("m", "v" or "master") of one unit range. If the state is offloaded, `values` has only a shape
// and a type. Data from `read` is valid until the next step; reading the states in order is fastest. Calls of `write`
// must cover all states completely and in order.
struct OptimizerState {
  std::string_view slot;
  UnitRange range;
  tensor::Tensor values;  // flat [end − begin], in the type of the master copy
  tensor::OffloadReader read = {};
  std::function<void(const tensor::Tensor& from)> write = {};
  tensor::Tensor raw = {};  // stored bytes of a split master copy, which is not stored in the type of `values`
  // The stored bytes of the state, for bitwise comparison or copying.
  const tensor::Tensor& memory() const { return raw.defined() ? raw : values; }
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // Updates every owned element. Each gradient is multiplied by `grad_scale` first.
  virtual void step(double lr, double grad_scale) = 0;
  // For checkpoints. To restore: load the model's values, restore each state through `values` or `write`, then call
  // states_restored().
  virtual std::span<OptimizerState> states() = 0;
  virtual void states_restored() {}
  virtual int64_t num_steps() const = 0;
  virtual void set_num_steps(int64_t steps) = 0;
  // Recreates the master copies from the parameter values. Call it after the values were loaded or initialised.
  virtual void refresh_master() = 0;
};

// Returns one shard per unit; together the shards cover the whole parameter list. The list must be allocated.
std::vector<OptimizerShard> all_units(const nn::ParameterList& parameters);

// Allocates the states from the context's pool. The parameter list (its shapes and decay flags) and the context must
// outlive the optimizer.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options, const nn::ParameterList& parameters,
                                          const tensor::Context& context, std::vector<OptimizerShard> owned);
std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options, const nn::ParameterList& parameters,
                                          const tensor::Context& context);  // the optimizer owns all units
std::vector<std::string_view> optimizer_names();

}  // namespace esp::optim
