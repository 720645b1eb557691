// The single-process reference trainer. Training on N ranks must be bit-identical to it. It has one thread and does not
// use esp/sync.
#include <cmath>
#include <cstring>

#include "esp/autograd/functions/cross_entropy.h"
#include "esp/base/check.h"
#include "esp/kernel/elementwise.h"
#include "esp/kernel/reduce.h"
#include "esp/optim/lr_schedule.h"
#include "tests/parity/sync_runs.h"

namespace esp::parity {
namespace {

using tensor::Tensor;
using train::RunConfig;

class ReferenceTrainer {
 public:
  ReferenceTrainer(RunConfig& config, int ranks)
      : config_(config),
        batch_per_rank_(config.train.global_batch / ranks),
        storage_(train::storage_type(config.train.precision)),
        threads_(1),
        pool_(account_),
        context_{{device::parse_device("cpu"), &threads_, nullptr}, &pool_},
        tape_(context_),
        feed_(train::make_data_pipeline(config, Log())),
        model_(model::make_model(train::model_config(config.model))),
        scale_(config.train.precision == "fp16" ? optim::LossScale::dynamic() : optim::LossScale::fixed()) {
    if (config.train.micro_batch == 0) config.train.micro_batch = batch_per_rank_;
    list().materialize(context_, storage_, true);
    list().initialise(static_cast<uint64_t>(config.run.seed), context_.stream);
    const train::TrainSection& t = config.train;
    optim::OptimizerOptions options{t.optimizer,    t.beta1,    t.beta2,    t.eps,
                                    t.weight_decay, t.momentum, t.nesterov, config.sync.split_master};
    optimizer_ = optim::make_optimizer(options, list(), context_);
    for (int r = 0; r < ranks; ++r) {
      data::DataLoaderOptions loading;
      loading.B = batch_per_rank_;
      loading.world = ranks;
      loading.rank = r;
      loaders_.push_back(std::make_unique<data::DataLoader>(*feed_->train, loading));
    }
    gradients_.resize(static_cast<size_t>(ranks), ByteImage(static_cast<size_t>(list().count()) * size_of(storage_)));
  }

  nn::ParameterList& list() { return model_->parameters(); }

  StepRecord step() {
    std::vector<const data::Batch*> batches;
    double counted = 0;
    for (auto& loader : loaders_) {
      batches.push_back(loader->next());
      counted += static_cast<double>(batches.back()->counted);
    }
    counted = std::max(1.0, counted);
    const double scale = scale_.scale();
    StepRecord result;
    for (size_t r = 0; r < batches.size(); ++r) result.loss += rank_gradient(*batches[r], r, scale / counted);
    result.loss /= counted;
    sum_in_rank_order();
    result.grad_norm = std::sqrt(sum_of_squares()) / scale;
    result.skipped = !std::isfinite(result.grad_norm);
    scale_.update(result.skipped);
    const train::TrainSection& t = config_.train;
    optim::LrScheduleOptions schedule{t.schedule, t.lr, t.steps, t.warmup, t.lr_floor, t.decay_steps};
    if (!result.skipped)
      optimizer_->step(optim::learning_rate(schedule, step_), optim::clip_factor(result.grad_norm, t.clip) / scale);
    ++step_;
    result.scale = scale_.scale();
    for (const auto& unit : list().units()) {
      const auto* bytes = unit.values.as<std::byte>();
      result.values.insert(result.values.end(), bytes, bytes + unit.values.bytes());
    }
    return result;
  }

 private:
  // Computes the gradient of one rank's batch, starting from zero, into gradients_[rank]. Returns the sum of the
  // losses.
  double rank_gradient(const data::Batch& batch, size_t rank, double scale) {
    list().zero_gradients(context_.stream);
    double sum = 0;
    for (int64_t first = 0; first < batch_per_rank_; first += config_.train.micro_batch) {
      nn::ForwardContext pass;
      pass.tape = &tape_;
      pass.training = true;
      pass.seed = static_cast<uint64_t>(config_.run.seed);
      pass.step = step_;
      pass.first_sequence = static_cast<int64_t>(rank) * batch_per_rank_ + first;
      pass.recompute = train::parse_recompute(config_.train.recompute);
      pass.recompute_layers = config_.train.recompute_layers;
      const autograd::Loss loss = model_->forward(pass, rows_of(batch, first), scale);
      sum += tensor::item(loss.total.value());
      autograd::backward(tape_, loss);
      tape_.clear();
    }
    size_t at = 0;
    for (const auto& unit : list().units()) {
      std::memcpy(gradients_[rank].data() + at, unit.grads.data(), unit.grads.bytes());
      at += unit.grads.bytes();
    }
    return sum;
  }

  model::ModelBatch rows_of(const data::Batch& batch, int64_t first) const {
    const int64_t count = config_.train.micro_batch;
    const auto view = [&](const std::vector<int32_t>& of, int64_t width) {
      return Tensor::borrow(const_cast<int32_t*>(of.data()) + first * width, {count, width}, DType::i32);
    };
    model::ModelBatch rows;
    rows.inputs = view(batch.inputs, batch.shape.T);
    rows.targets = view(batch.targets, batch.shape.num_targets);
    return rows;  // no lengths: texts are cut to equal length, so there is no padding
  }

  void sum_in_rank_order() {
    size_t at = 0;
    for (const auto& unit : list().units()) {
      std::vector<const void*> terms;
      for (const ByteImage& one : gradients_) terms.push_back(one.data() + at);
      kernel::ref::reduce_ordered(unit.grads.data(), terms.data(), static_cast<int>(terms.size()),
                                  static_cast<size_t>(unit.count), storage_, kernel::ReduceOp::sum);
      at += unit.grads.bytes();
    }
  }

  // Sum of squares of all gradients: sums blocks of 4096 elements of each unit in order, then the sums of the units.
  double sum_of_squares() const {
    double sum = 0;
    for (const auto& unit : model_->parameters().units()) {
      double of_unit = 0;
      for (int64_t at = 0; at < unit.count; at += 4096)
        of_unit += kernel::sum_of_squares(unit.grads.as<std::byte>() + static_cast<size_t>(at) * size_of(storage_),
                                          std::min<int64_t>(4096, unit.count - at), storage_, device::Stream());
      sum += of_unit;
    }
    return sum;
  }

  RunConfig& config_;
  const int64_t batch_per_rank_;
  const DType storage_;
  device::MemoryAccount account_;
  device::ThreadPool threads_;
  device::MemoryPool pool_;
  tensor::Context context_;
  autograd::Tape tape_;
  std::unique_ptr<train::DataPipeline> feed_;
  std::unique_ptr<model::Model> model_;
  optim::LossScale scale_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::vector<std::unique_ptr<data::DataLoader>> loaders_;
  std::vector<ByteImage> gradients_;
  int64_t step_ = 0;
};

}  // namespace

RunResult train_reference(const RunSpec& spec) {
  RunConfig config = parse_config(spec.overrides);
  ReferenceTrainer trainer(config, spec.ranks);
  RunResult seen;
  for (const auto& unit : trainer.list().units()) seen.units.push_back(unit.count);
  for (int step = 0; step < spec.steps; ++step) seen.steps.push_back(trainer.step());
  return seen;
}

}  // namespace esp::parity
