// The table of optimizers.
#include "esp/base/table.h"
#include "esp/optim/flat.h"

namespace esp::optim {
namespace {

constexpr std::string_view kMoments[] = {"m", "v"};
constexpr std::string_view kMomentum[] = {"m"};

class Adam final : public FlatOptimizer {
 public:
  Adam(const OptimizerOptions& options, nn::ParameterList& parameters, const tensor::Context& context,
       std::vector<Range> ranges, bool decoupled)
      : FlatOptimizer(options, parameters, context, std::move(ranges), kMoments), decoupled_(decoupled) {}

 private:
  void update(const kernel::StepBuffers& buffers, double lr, double decay, double grad_scale, int64_t t) override {
    kernel::AdamStep step;
    step.lr = lr;
    step.beta1 = options_.beta1;
    step.beta2 = options_.beta2;
    step.eps = options_.eps;
    step.weight_decay = decay;
    step.t = t;
    step.decoupled = decoupled_;
    step.grad_scale = grad_scale;
    kernel::adam_step(buffers, step, context_.stream);
  }
  const bool decoupled_;
};

class Sgd final : public FlatOptimizer {
 public:
  Sgd(const OptimizerOptions& options, nn::ParameterList& parameters, const tensor::Context& context,
      std::vector<Range> ranges)
      : FlatOptimizer(options, parameters, context, std::move(ranges),
                      options.momentum != 0 ? std::span<const std::string_view>(kMomentum)
                                            : std::span<const std::string_view>()) {}

 private:
  void update(const kernel::StepBuffers& buffers, double lr, double decay, double grad_scale, int64_t) override {
    kernel::SgdStep step;
    step.lr = lr;
    step.momentum = options_.momentum;
    step.nesterov = options_.nesterov;
    step.weight_decay = decay;
    step.grad_scale = grad_scale;
    kernel::sgd_step(buffers, step, context_.stream);
  }
};

struct Row {
  std::string_view name, help;
  std::unique_ptr<Optimizer> (*make)(const OptimizerOptions&, nn::ParameterList&, const tensor::Context&,
                                     std::vector<Range>);
};

constexpr Row kOptimizers[] = {
    {"adamw", "Adam with decoupled weight decay",
     [](const OptimizerOptions& o, nn::ParameterList& p, const tensor::Context& c, std::vector<Range> r)
         -> std::unique_ptr<Optimizer> { return std::make_unique<Adam>(o, p, c, std::move(r), true); }},
    {"adam", "Adam; weight decay is added to the gradient",
     [](const OptimizerOptions& o, nn::ParameterList& p, const tensor::Context& c, std::vector<Range> r)
         -> std::unique_ptr<Optimizer> { return std::make_unique<Adam>(o, p, c, std::move(r), false); }},
    {"sgd", "gradient descent with momentum, Nesterov's by choice",
     [](const OptimizerOptions& o, nn::ParameterList& p, const tensor::Context& c,
        std::vector<Range> r) -> std::unique_ptr<Optimizer> { return std::make_unique<Sgd>(o, p, c, std::move(r)); }},
};

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options, nn::ParameterList& parameters,
                                          const tensor::Context& context, std::vector<Range> ranges) {
  return find_row("optimizer", kOptimizers, options.name).make(options, parameters, context, std::move(ranges));
}

std::vector<std::string_view> optimizer_names() {
  return names_of(kOptimizers);
}

}  // namespace esp::optim
