#include "esp/parallel/pp/runner.h"

#include <algorithm>
#include <utility>

#include "esp/base/check.h"
#include "esp/base/clock.h"
#include "esp/parallel/pp/defer_ready.h"

namespace esp::parallel {
namespace {

using autograd::Variable;
using device::MemoryCategory;
using tensor::Tensor;

constexpr Duration kMaxAbortWait = std::chrono::seconds(30);

// Returns the variable without its value. It can still receive a gradient.
Variable slot_of(const Variable& variable) {
  return {Tensor(), variable.slot()};
}

}  // namespace

void PipelineStage::begin_backward(int, int) {}
void PipelineStage::end_action(const PipelineAction&) {}

PipelineRunner::PipelineRunner(PipelineStage& stage, const tensor::Context& context, const StageEdges& edges,
                               const RunnerOptions& options)
    : stage_(stage), context_(context), edges_(edges), options_(options) {}

PipelineRunner::~PipelineRunner() {
  std::vector<Work> in_progress;
  for (const PendingSend& one : sending_)
    if (!one.work.done()) in_progress.push_back(one.work);
  for (const Work& work : receiving_)
    if (!work.done()) in_progress.push_back(work);
  if (in_progress.empty()) return;
  for (comm::Communicator* edge :
       {edges_.activations_in, edges_.gradients_out, edges_.activations_out, edges_.gradients_in})
    if (edge) edge->abort("this stage left in the middle of a step");
  for (const Work& work : in_progress) {
    try {
      work.wait(Deadline::after(kMaxAbortWait));
    } catch (const std::exception&) {
      // the original error has already been thrown
    }
  }
}

size_t PipelineRunner::index_of(const PipelineAction& action) const {
  return static_cast<size_t>(action.chunk * shape_.micro_batches + action.micro_batch);
}

PipelineRunner::ReceivedTensors& PipelineRunner::received_for(const PipelineAction& action) {
  return (action.kind == ActionKind::forward ? inputs_ : gradients_)[index_of(action)];
}

PipelineRunner::LiveActivation*& PipelineRunner::live_of(const PipelineAction& action) {
  return live_[index_of(action)];
}

void PipelineRunner::run(const StagePlan& plan) {
  ESP_CHECK(!broken_, "pipeline runner: cannot run again after an error");
  prepare(plan);
  try {
    if (plan.backward != Backward::none) defer_ready_all(plan.shape.chunks);
    for (const StageStep& step : plan.steps) run_step(plan, step);
    for (const PendingSend& one : sending_) wait(one.work, "send", plan.steps.back().action);
  } catch (...) {
    drop_step();
    throw;
  }
  sending_.clear();
  receiving_.clear();
  ESP_CHECK(num_live_ == 0, "pipeline runner: got {} live activations after the step; expected 0", num_live_);
}

void PipelineRunner::prepare(const StagePlan& plan) {
  const auto count = static_cast<size_t>(plan.shape.chunks * plan.shape.micro_batches);
  if (live_.size() < count) {
    live_.resize(count, nullptr);
    inputs_.resize(count);
    gradients_.resize(count);
  }
  deferred_.resize(static_cast<size_t>(plan.shape.chunks), false);
  shape_ = plan.shape;
  peak_live_ = 0;
}

void PipelineRunner::run_step(const StagePlan& plan, const StageStep& step) {
  switch (step.kind) {
    case StepKind::receive:
      return start_receive(step.action);
    case StepKind::send:
      return start_send(step.action);
    case StepKind::compute:
      break;
  }
  compute(plan, step.action);
  // If the receiving chunk is on the same stage, it gets the tensors without a send.
  const auto to = destination_of(plan.shape, plan.stage, step.action);
  if (to && to->stage == plan.stage)
    received_for({step.action.kind, to->chunk, step.action.micro_batch}) = std::exchange(outgoing_, {});
}

void PipelineRunner::start_receive(const PipelineAction& action) {
  const bool forward = action.kind == ActionKind::forward;
  comm::Communicator* from = forward ? edges_.activations_in : edges_.gradients_in;
  ESP_CHECK(from, "this stage has no neighbour to receive from");
  const StageTensorShapes shape = forward ? stage_.input_shape(action.chunk, action.micro_batch)
                                          : stage_.output_shape(action.chunk, action.micro_batch);
  std::erase_if(receiving_, [](const Work& work) { return work.done(); });
  const auto start = [&](const tensor::Shape& of, Tensor& tensor, Work& arrival) {
    tensor = tensor::empty(context_, of, shape.dtype, MemoryCategory::buffer);
    comm::Call call;
    call.op = comm::Op::recv;
    call.out = tensor.data();
    call.count = static_cast<size_t>(tensor.count());
    call.dtype = tensor.dtype();
    call.root = 1 - from->rank();
    arrival = from->start(call);
    receiving_.push_back(arrival);
  };
  ReceivedTensors& received = received_for(action);
  start(shape.x, received.x, received.x_arrived);
  if (shape.memory.rank() > 0) start(shape.memory, received.memory, received.memory_arrived);
}

void PipelineRunner::start_send(const PipelineAction& action) {
  comm::Communicator* to = action.kind == ActionKind::forward ? edges_.activations_out : edges_.gradients_out;
  ESP_CHECK(to, "this stage has no neighbour to send to");
  const ReceivedTensors received = std::exchange(outgoing_, {});
  for (const PendingSend& one : sending_)
    if (one.work.done()) one.work.wait(Deadline::after_ms(0));  // rethrows the error of the send
  std::erase_if(sending_, [](const PendingSend& one) { return one.work.done(); });
  send(to, received.x);
  if (received.memory.defined()) send(to, received.memory);
}

void PipelineRunner::send(comm::Communicator* to, const Tensor& tensor) {
  comm::Call call;
  call.op = comm::Op::send;
  call.in = tensor.data();
  call.count = static_cast<size_t>(tensor.count());
  call.dtype = tensor.dtype();
  call.root = 1 - to->rank();
  sending_.push_back({tensor, to->start(call)});
}

PipelineRunner::ReceivedTensors PipelineRunner::wait_for_tensors(const PipelineAction& action) {
  // A reference and not a copy: the receive writes to the memory of this entry during the wait.
  ReceivedTensors& received = received_for(action);
  wait(received.x_arrived, "wait", action);
  wait(received.memory_arrived, "wait", action);
  return std::exchange(received, {});
}

void PipelineRunner::wait(const Work& work, const char* what, const PipelineAction& action) {
  if (work.done()) {
    work.wait(Deadline::after_ms(0));  // rethrows the error of the receive
    return;
  }
  obs::Span span(options_.trace, what, "communication");
  span.arg("micro_batch", action.micro_batch);
  span.arg("chunk", action.chunk);
  const int64_t begun = now_ns();
  work.wait(Deadline::after(options_.timeout));
  exposed_ms_ += static_cast<double>(now_ns() - begun) * 1e-6;
}

void PipelineRunner::compute(const StagePlan& plan, const PipelineAction& action) {
  switch (action.kind) {
    case ActionKind::forward:
      return forward(plan, action);
    case ActionKind::backward:
      return backward(plan, action);
    case ActionKind::weights:
      break;
  }
  obs::Span span(options_.trace, name_of(action, shape_.chunks), "compute");
  live_of(action)->tape.backward_weights();
  finish(action);
  stage_.end_action(action);
}

void PipelineRunner::forward(const StagePlan& plan, const PipelineAction& action) {
  const bool training = plan.backward != Backward::none;
  ReceivedTensors received = wait_for_tensors(action);
  obs::Span span(options_.trace, name_of(action, shape_.chunks), "compute");
  if (free_.empty()) free_.push_back(activations_.emplace_back(std::make_unique<LiveActivation>(context_)).get());
  LiveActivation& live = *(live_of(action) = free_.back());
  free_.pop_back();
  peak_live_ = std::max(peak_live_, ++num_live_);

  live.tape.set_recording(training);
  const auto input = [&](Tensor& value) {
    if (!value.defined()) return Variable();
    return training ? live.tape.leaf(std::exchange(value, {})) : Variable(std::exchange(value, {}));
  };
  live.input = {input(received.x), input(received.memory)};
  PipelineStage::ForwardResult output = stage_.forward(action.chunk, action.micro_batch, live.tape, live.input);
  if (destination_of(plan.shape, plan.stage, action))
    outgoing_ = {output.carried.x.value(), output.carried.memory.value(), {}, {}};
  // Releases the values here. The autograd nodes keep the values that backward needs.
  live.input = {slot_of(live.input.x), slot_of(live.input.memory)};
  live.output = {slot_of(output.carried.x), slot_of(output.carried.memory)};
  live.loss = slot_of(output.loss.total);
  if (!training) finish(action);
  stage_.end_action(action);
}

void PipelineRunner::seed_gradients(LiveActivation& live, ReceivedTensors gradients) {
  const auto give = [&](const Variable& output, Tensor& gradient) {
    if (output.needs_grad() && gradient.defined()) live.tape.seed(output, std::exchange(gradient, {}));
  };
  give(live.output.x, gradients.x);
  give(live.output.memory, gradients.memory);
  if (!live.loss.needs_grad()) return;
  autograd::Loss loss;
  loss.total = live.loss;
  autograd::seed(live.tape, loss);
}

void PipelineRunner::backward(const StagePlan& plan, const PipelineAction& action) {
  ReceivedTensors gradients = wait_for_tensors(action);
  obs::Span span(options_.trace, name_of(action, shape_.chunks), "compute");
  LiveActivation& live = *live_of(action);
  if (action.micro_batch + 1 == shape_.micro_batches) resume_ready_of(action.chunk);
  stage_.begin_backward(action.chunk, action.micro_batch);
  seed_gradients(live, std::move(gradients));
  const bool split = plan.backward == Backward::split;
  if (split)
    live.tape.backward_inputs();
  else
    live.tape.backward();
  if (destination_of(plan.shape, plan.stage, action)) {
    const StageTensorShapes shape = stage_.input_shape(action.chunk, action.micro_batch);
    outgoing_.x = gradient_of(live, live.input.x, shape.x, shape.dtype);
    outgoing_.memory = gradient_of(live, live.input.memory, shape.memory, shape.dtype);
  }
  if (!split) finish(action);
  stage_.end_action(action);
}

// The previous virtual stage waits for this gradient, so a missing gradient is sent as zeros.
Tensor PipelineRunner::gradient_of(LiveActivation& live, const Variable& leaf, const tensor::Shape& shape,
                                   DType dtype) const {
  if (!leaf.needs_grad()) return {};
  Tensor gradient = live.tape.take_gradient(leaf);
  return gradient.defined() ? gradient : tensor::zeros(context_, shape, dtype, MemoryCategory::activation);
}

void PipelineRunner::finish(const PipelineAction& action) {
  LiveActivation*& live = live_of(action);
  live->tape.clear();
  live->input = live->output = {};
  live->loss = {};
  free_.push_back(std::exchange(live, nullptr));
  --num_live_;
}

void PipelineRunner::defer_ready_all(int num_chunks) {
  for (int chunk = 0; chunk < num_chunks; ++chunk) {
    for (autograd::Weight* weight : stage_.weights(chunk)) defer_ready(*weight);
    deferred_[static_cast<size_t>(chunk)] = true;
  }
}

void PipelineRunner::resume_ready_of(int chunk) {
  deferred_[static_cast<size_t>(chunk)] = false;
  for (autograd::Weight* weight : stage_.weights(chunk)) resume_ready(*weight, context_.stream);
}

// Drops all tapes of the step, because they reference weights that may be destroyed soon after the runner. Transfers in
// flight keep their memory until the runner is destroyed.
void PipelineRunner::drop_step() noexcept {
  broken_ = true;
  for (const auto& live : activations_) live->tape.clear();
  for (size_t chunk = 0; chunk < deferred_.size(); ++chunk)
    if (deferred_[chunk])
      for (autograd::Weight* weight : stage_.weights(static_cast<int>(chunk))) cancel_deferred_ready(*weight);
}

uint64_t PipelineRunner::bytes_being_sent() const {
  uint64_t bytes = 0;
  for (const PendingSend& one : sending_) bytes += one.tensor.bytes();
  return bytes;
}

}  // namespace esp::parallel
