// The table of optimizers.
#include "esp/base/table.h"
#include "esp/device/is_cuda.h"
#include "esp/kernel/cuda/device_scalars.h"
#include "esp/optim/flat_optimizer.h"

namespace esp::optim {
namespace {

constexpr std::string_view kMoments[] = {"m", "v"};
constexpr std::string_view kMomentum[] = {"m"};

class Adam final : public UpdateRule {
 public:
  Adam(const OptimizerOptions& options, bool decoupled) : options_(options), decoupled_(decoupled) {}
  std::span<const std::string_view> slots() const override { return kMoments; }
  void update(const kernel::StepBuffers& buffers, const UpdateStep& at, const device::Stream& stream) const override {
    kernel::adam_step(buffers, step_of(at), stream);
  }
  void update_all(std::span<const kernel::StepBuffers> buffers, std::span<const UpdateStep> steps,
                  const device::Stream& stream) const override {
    if (!device::is_cuda(stream)) return UpdateRule::update_all(buffers, steps, stream);
    std::vector<kernel::AdamStep> all;
    for (const UpdateStep& at : steps) all.push_back(step_of(at));
    kernel::cuda::multi_tensor_adam_step(buffers, all, stream);
  }

 private:
  kernel::AdamStep step_of(const UpdateStep& at) const {
    kernel::AdamStep step;
    step.lr = at.lr;
    step.beta1 = options_.beta1;
    step.beta2 = options_.beta2;
    step.eps = options_.eps;
    step.weight_decay = at.decay ? options_.weight_decay : 0;
    step.t = at.t;
    step.decoupled = decoupled_;
    step.grad_scale = at.grad_scale;
    return step;
  }

  const OptimizerOptions options_;
  const bool decoupled_;
};

class Sgd final : public UpdateRule {
 public:
  explicit Sgd(const OptimizerOptions& options) : options_(options) {}
  std::span<const std::string_view> slots() const override {
    return options_.momentum != 0 ? std::span<const std::string_view>(kMomentum) : std::span<const std::string_view>();
  }
  void update(const kernel::StepBuffers& buffers, const UpdateStep& at, const device::Stream& stream) const override {
    kernel::SgdStep step;
    step.lr = at.lr;
    step.momentum = options_.momentum;
    step.nesterov = options_.nesterov;
    step.weight_decay = at.decay ? options_.weight_decay : 0;
    step.grad_scale = at.grad_scale;
    kernel::sgd_step(buffers, step, stream);
  }

 private:
  const OptimizerOptions options_;
};

struct Row {
  std::string_view name, help;
  std::unique_ptr<UpdateRule> (*make)(const OptimizerOptions&);
};

constexpr Row kOptimizers[] = {
    {"adamw", "Adam with decoupled weight decay",
     [](const OptimizerOptions& o) -> std::unique_ptr<UpdateRule> { return std::make_unique<Adam>(o, true); }},
    {"adam", "Adam; weight decay is added to the gradient",
     [](const OptimizerOptions& o) -> std::unique_ptr<UpdateRule> { return std::make_unique<Adam>(o, false); }},
    {"sgd", "stochastic gradient descent with momentum, optionally Nesterov momentum",
     [](const OptimizerOptions& o) -> std::unique_ptr<UpdateRule> { return std::make_unique<Sgd>(o); }},
};

}  // namespace

std::unique_ptr<UpdateRule> make_update_rule(const OptimizerOptions& options) {
  return find_row("optimizer", kOptimizers, options.name).make(options);
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options, const nn::ParameterList& parameters,
                                          const tensor::Context& context, std::vector<OptimizerShard> owned) {
  return std::make_unique<FlatOptimizer>(make_update_rule(options), parameters, context, std::move(owned),
                                         options.split_master);
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options, const nn::ParameterList& parameters,
                                          const tensor::Context& context) {
  return make_optimizer(options, parameters, context, all_units(parameters));
}

std::vector<std::string_view> optimizer_names() {
  return names_of(kOptimizers);
}

}  // namespace esp::optim
