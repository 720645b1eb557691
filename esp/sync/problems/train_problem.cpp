#include "esp/sync/problems/train_problem.h"

#include <cmath>

#include "esp/autograd/functions/weights.h"
#include "esp/base/check.h"
#include "esp/kernel/elementwise.h"
#include "esp/net/inproc/threads.h"

namespace esp::sync {
namespace {

using tensor::Tensor;

class ProblemTrainer {
 public:
  ProblemTrainer(const OptimizationProblem& problem, comm::Communicator* ranks, const ProblemTrainingOptions& options)
      : problem_(problem), options_(options), rank_(ranks ? ranks->rank() : 0), size_(ranks ? ranks->size() : 1) {
    ESP_CHECK(size_ <= problem.nodes(), "train_problem: got {} ranks; expected at most {}, the nodes of the problem",
              size_, problem.nodes());
    int64_t done = 0;
    // each unit takes half of the remaining elements; the last unit takes the rest
    for (int unit = 0; unit < options.units; ++unit) {
      const int64_t left = problem.dim() - done, count = unit + 1 == options.units ? left : (left + 1) / 2;
      list_.begin_unit("unit" + std::to_string(unit));
      list_.add("x" + std::to_string(unit), {count}, nn::Init::zeros(), false);
      done += count;
    }
    Setup setup;
    setup.ranks = ranks;
    setup.ranks_per_node = options.ranks_per_node;
    setup.parameters = &list_;
    setup.context = context_;
    setup.storage = options.storage;
    setup.options = options.sync;
    setup.timeout = std::chrono::minutes(2);
    strategy_ = make_strategy(setup);
    x_.assign(static_cast<size_t>(problem.dim()), 0);
    if (!options.start.empty()) x_ = options.start;
    strategy_->fill([&](nn::ParameterList::Unit& unit) {
      kernel::cast(unit.values.data(), options.storage, x_.data() + unit.first, DType::f64, unit.count, {});
    });
    optimizer_ = optim::make_optimizer(options.optimizer, list_, context_, strategy_->optimizer_shards());
    if (DivergentReplicas* divergent = strategy_->divergent_replicas()) divergent->attach(*optimizer_);
    g_.resize(x_.size());
  }

  std::vector<double> run() {
    for (int64_t step = 0; step < options_.steps; ++step) {
      take_step(step);
      read();
      if (options_.on_step) options_.on_step(step, x_, *strategy_);
    }
    return x_;
  }

 private:
  void read() {
    const Tensor& first = list_.units().front().values;
    kernel::cast(x_.data(), DType::f64, first.data(), first.dtype(), problem_.dim(), {});
  }

  // The factor 1/n of a mean over the n replicas of the reduction scope. In the trainer this factor is in the loss,
  // through the token count.
  double share() {
    DivergentReplicas* divergent = strategy_->divergent_replicas();
    if (!divergent) return 1.0 / size_;
    divergent->set_local_tokens(1);
    const ReductionScope scope = divergent->reduction_scope();
    return scope.all_replicas ? 1.0 / size_ : 1.0 / (scope.group ? scope.group->size() : 1);
  }

  void take_step(int64_t step) {
    const double scale = share();
    strategy_->begin_step();
    strategy_->begin_pass({});
    read();  // reads x again, because the strategy may have written it
    problem_.noisy_gradient(rank_, step, x_, g_);
    for (double& one : g_) one *= scale;
    strategy_->begin_backward();
    for (nn::Parameter& p : list_.all()) {
      p.weight.fetch_value();
      void* to = autograd::gradient_to_add_to(&p.weight, context_.stream);
      const int64_t first = list_.units()[static_cast<size_t>(p.unit)].first + p.offset;
      kernel::cast(to, options_.storage, g_.data() + first, DType::f64, p.count(), context_.stream);
      if (p.weight.on_ready) p.weight.on_ready();
    }
    strategy_->end_pass();
    strategy_->finish();
    optimizer_->step(options_.lr, 1);
    strategy_->after_step();
  }

  const OptimizationProblem& problem_;
  const ProblemTrainingOptions& options_;
  const int rank_, size_;
  device::MemoryAccount account_;
  device::MemoryPool pool_{account_};
  device::ThreadPool threads_{1};
  tensor::Context context_{{{}, &threads_, nullptr}, &pool_};
  nn::ParameterList list_;
  std::unique_ptr<Strategy> strategy_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::vector<double> x_, g_;
};

}  // namespace

std::vector<double> train_problem(const OptimizationProblem& problem, comm::Communicator* ranks,
                                  const ProblemTrainingOptions& options) {
  return ProblemTrainer(problem, ranks, options).run();
}

void run_on_ranks(int size, const std::function<void(comm::Communicator*)>& body) {
  net::run_threads(size, [&](net::World& world) {
    comm::CommOptions options;
    options.transport = "inproc";
    options.timeout = std::chrono::minutes(1);
    const auto ranks = comm::make_communicator(world, world.world_group(), options);
    body(ranks.get());
  });
}

}  // namespace esp::sync
