#include "esp/train/engine.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/optim/schedule.h"

namespace esp::train {
namespace {

using tensor::Tensor;

int threads_of(const RunConfig& config) {
  return config.run.threads > 0 ? static_cast<int>(config.run.threads) : available_cores();
}

optim::OptimizerOptions optimizer_options(const TrainSection& t) {
  optim::OptimizerOptions o;
  o.name = t.optimizer;
  o.beta1 = t.beta1;
  o.beta2 = t.beta2;
  o.eps = t.eps;
  o.weight_decay = t.weight_decay;
  o.momentum = t.momentum;
  o.nesterov = t.nesterov;
  return o;
}

double rate_at(const TrainSection& t, int64_t step) {
  optim::ScheduleOptions o;
  o.name = t.schedule;
  o.lr = t.lr;
  o.steps = t.steps;
  o.warmup = t.warmup;
  o.floor = t.lr_floor;
  o.decay = t.decay_steps;
  return optim::learning_rate(o, step);
}

// Rows [first, first + count) of a host batch, lent to the model.
model::Batch rows_of(const data::Batch& batch, int64_t first, int64_t count) {
  const auto view = [&](const std::vector<int32_t>& values, int64_t width, bool flat) {
    if (values.empty() || width == 0) return Tensor();
    int32_t* at = const_cast<int32_t*>(values.data()) + first * width;
    return Tensor::over(at, flat ? tensor::Shape{count} : tensor::Shape{count, width}, DType::i32);
  };
  model::Batch rows;
  rows.inputs = view(batch.inputs, batch.shape.T, false);
  rows.targets = view(batch.targets, batch.shape.num_targets, batch.shape.num_targets == 1);
  rows.decoder_inputs = view(batch.decoder_inputs, batch.shape.T_decoder, false);
  // Without padding the kernels need not look.
  const auto begin = batch.lengths.begin() + first;
  if (!batch.lengths.empty() &&
      !std::all_of(begin, begin + count, [&](int32_t length) { return length == batch.shape.T; }))
    rows.lengths = view(batch.lengths, 1, true);
  return rows;
}

}  // namespace

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

Engine::Engine(RunConfig& config, const Log& log, obs::TraceRow* trace)
    : config_(config),
      threads_(threads_of(config)),
      pool_(account_),
      context_{{device::parse_device(config.run.device), &threads_, nullptr}, &pool_},
      feed_(make_feed(config, log)),
      loss_scale_(config.train.precision == "fp16" ? optim::LossScale::dynamic() : optim::LossScale::fixed()),
      tape_(context_),
      trace_(trace) {
  if (config.run.device != "cpu")
    throw UsageError(fmt::format("run.device = {}: this build has cpu only", config.run.device));
  if (config.train.micro_batch == 0) config.train.micro_batch = config.train.global_batch;
  const model::ModelConfig shape = model_config(config.model);
  shape.check();
  model_ = model::make_model(shape);
  model_->parameters().materialize(context_, storage_type(config.train.precision), true);
  model_->parameters().initialise(static_cast<uint64_t>(config.run.seed), context_.stream);
  optimizer_ = optim::make_optimizer(optimizer_options(config.train), model_->parameters(), context_);
  data::LoaderOptions loading;
  loading.B = config.train.global_batch;
  loader_ = std::make_unique<data::Loader>(*feed_->train, loading);
}

Engine::~Engine() = default;

int64_t Engine::tokens_per_step() const {
  const data::BatchShape shape = feed_->train->shape();
  return config_.train.global_batch * (shape.T + shape.T_decoder);
}

void Engine::resume_at(int64_t step) {
  step_ = step;
  loader_->seek(next_sample());
}

double Engine::run_micro_batches(const data::Batch& batch, bool training, double scale) {
  double sum = 0;
  for (int64_t first = 0; first < batch.B; first += config_.train.micro_batch) {
    const int64_t count = std::min(config_.train.micro_batch, batch.B - first);
    const model::Batch rows = rows_of(batch, first, count);
    nn::Pass pass;
    pass.tape = &tape_;
    pass.training = training;
    pass.seed = static_cast<uint64_t>(config_.run.seed);
    pass.step = step_;
    pass.first_sequence = first;
    pass.recompute = training ? parse_recompute(config_.train.recompute) : nn::Recompute::none;
    tape_.set_recording(training);
    autograd::Loss loss;
    {
      obs::Span span(trace_, "forward", "compute");
      loss = model_->forward(pass, rows, scale);
    }
    sum += tensor::item(loss.total.value());
    if (training) {
      obs::Span span(trace_, "backward", "compute");
      autograd::backward(tape_, loss);
    }
    loss = {};
    tape_.clear();
  }
  return sum;
}

StepResult Engine::step() {
  const data::Batch* batch;
  {
    obs::Span span(trace_, "data", "host");
    batch = loader_->next();
  }
  ESP_CHECK(batch, "the training data ended");
  model_->parameters().forget_gradients(context_.stream);
  StepResult result;
  result.lr = rate_at(config_.train, step_);
  result.tokens = tokens_per_step();
  const double scale = loss_scale_.scale();
  const auto counted = static_cast<double>(std::max<int64_t>(1, batch->counted));
  result.loss = run_micro_batches(*batch, true, scale / counted) / counted;

  obs::Span span(trace_, "optimizer", "compute");
  model_->parameters().settle_gradients(context_.stream);
  result.grad_norm = std::sqrt(optim::sum_of_squares(model_->parameters(), context_.stream)) / scale;
  result.skipped = !std::isfinite(result.grad_norm);
  loss_scale_.update(result.skipped);
  if (!result.skipped) optimizer_->step(result.lr, optim::clip_factor(result.grad_norm, config_.train.clip) / scale);
  ++step_;
  return result;
}

double Engine::evaluate(int64_t batches) {
  if (!feed_->val) return std::numeric_limits<double>::quiet_NaN();
  obs::Span span(trace_, "evaluate", "compute");
  const int64_t rows = config_.train.global_batch;
  const auto available = static_cast<int64_t>(feed_->val->samples_per_epoch());
  double sum = 0;
  int64_t counted = 0;
  for (int64_t first = 0; first < std::min(batches * rows, available); first += rows) {
    data::fill_batch(*feed_->val, static_cast<uint64_t>(first), std::min(rows, available - first), eval_batch_);
    sum += run_micro_batches(eval_batch_, false, 0);
    counted += eval_batch_.counted;
  }
  return counted > 0 ? sum / static_cast<double>(counted) : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace esp::train
