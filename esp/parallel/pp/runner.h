// PipelineRunner: executes one stage's plan (steps.h) step by step, computes through a PipelineStage, and communicates
// with the neighbouring stages.
//
// Receives start one action ahead, into pool memory; sends start when their action is done. The runner waits for both
// as late as possible, so transfers overlap with computation; the waiting time is counted. Every live (chunk,
// micro-batch) has a tape, which is reused: after the first step of a plan no memory is allocated.
//
// A training step defers all weights at its start and resumes a chunk's weights when the backward of its last
// micro-batch begins (defer_ready.h), so `on_ready` fires once per step. One thread. The stage, the context and the
// communicators are borrowed. After an error mid-step the runner is unusable. Destroying it with transfers in flight
// aborts their groups, because their memory is about to be freed.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "esp/autograd/functions/cross_entropy.h"
#include "esp/autograd/tape.h"
#include "esp/comm/communicator.h"
#include "esp/obs/spans.h"
#include "esp/parallel/pp/steps.h"

namespace esp::parallel {

// Tensors passed between stages: the residual stream and, in the decoder of an encoder-decoder model, the encoder
// output (else undefined).
struct StageTensors {
  autograd::Variable x, memory;
};

// Shapes of the StageTensors. A memory shape of rank 0 means that there is no memory tensor.
struct StageTensorShapes {
  tensor::Shape x, memory;
  DType dtype = DType::f32;
};

// The computation of one stage; implemented by the owner of the model.
class PipelineStage {
 public:
  struct ForwardResult {
    StageTensors carried;  // ignored for the last virtual stage
    // The loss of the last virtual stage. Other stages may return an auxiliary loss; if it needs a gradient, backward
    // starts from it with gradient 1.
    autograd::Loss loss;
  };

  virtual ~PipelineStage() = default;
  // Shapes received from the previous virtual stage and sent to the next. input_shape is not called for the first
  // virtual stage, output_shape not for the last.
  virtual StageTensorShapes input_shape(int chunk, int micro_batch) const = 0;
  virtual StageTensorShapes output_shape(int chunk, int micro_batch) const = 0;
  // Records on the tape; in a plan without backward the tape does not record. `input` is empty on the first virtual
  // stage.
  virtual ForwardResult forward(int chunk, int micro_batch, autograd::Tape& tape, const StageTensors& input) = 0;
  // Notifications. begin_backward is called before each backward (B), end_action after each action, within its trace
  // span.
  virtual void begin_backward(int chunk, int micro_batch);
  virtual void end_action(const PipelineAction& action);
  // The weights of a chunk; the list is the same at every call. A weight that two chunks use is in both lists.
  virtual std::span<autograd::Weight* const> weights(int chunk) const = 0;
};

// The communicators of a stage, with two ranks each; null at the ends of the model. With several chunks the last stage
// is connected to the first.
struct StageEdges {
  comm::Communicator* activations_in = nullptr;   // from the stage before
  comm::Communicator* gradients_out = nullptr;    // to the stage before
  comm::Communicator* activations_out = nullptr;  // to the stage after
  comm::Communicator* gradients_in = nullptr;     // from the stage after
};

struct RunnerOptions {
  Duration timeout = std::chrono::minutes(10);  // timeout of each wait
  obs::TraceRow* trace = nullptr;               // receives a span for each action ("F3") and each wait
};

class PipelineRunner {
 public:
  PipelineRunner(PipelineStage& stage, const tensor::Context& context, const StageEdges& edges,
                 const RunnerOptions& options);
  ~PipelineRunner();
  PipelineRunner(const PipelineRunner&) = delete;
  PipelineRunner& operator=(const PipelineRunner&) = delete;

  // Runs one step, or one evaluation if the plan has no backward. All sends have completed when it returns.
  void run(const StagePlan& plan);

  double exposed_ms() const { return exposed_ms_; }  // time spent waiting for neighbours
  void reset_times() { exposed_ms_ = 0; }
  int num_live() const { return num_live_; }    // number of live (chunk, micro-batch) activations
  int peak_live() const { return peak_live_; }  // maximum number in the last run
  uint64_t bytes_being_sent() const;            // bytes kept until the neighbour has received them

 private:
  // State of a (chunk, micro-batch) after its forward and before the end of its backward (of W if backward is split).
  struct LiveActivation {
    explicit LiveActivation(const tensor::Context& context) : tape(context) {}
    autograd::Tape tape;
    StageTensors input;   // leaves of the tape
    StageTensors output;  // gradient slots; the values have been sent
    autograd::Variable loss;
  };
  struct ReceivedTensors {  // the tensors of a StageTensors, or their gradients
    tensor::Tensor x, memory;
    Work x_arrived, memory_arrived;
  };
  struct PendingSend {
    tensor::Tensor tensor;
    Work work;
  };

  void prepare(const StagePlan& plan);
  void run_step(const StagePlan& plan, const StageStep& step);
  void compute(const StagePlan& plan, const PipelineAction& action);
  void start_receive(const PipelineAction& action);
  void start_send(const PipelineAction& action);
  void send(comm::Communicator* to, const tensor::Tensor& tensor);
  void forward(const StagePlan& plan, const PipelineAction& action);
  void backward(const StagePlan& plan, const PipelineAction& action);
  void finish(const PipelineAction& action);
  void seed_gradients(LiveActivation& live, ReceivedTensors gradients);
  ReceivedTensors wait_for_tensors(const PipelineAction& action);
  tensor::Tensor gradient_of(LiveActivation& live, const autograd::Variable& leaf, const tensor::Shape& shape,
                             DType dtype) const;
  void wait(const Work& work, const char* what, const PipelineAction& action);
  void defer_ready_all(int num_chunks);
  void resume_ready_of(int chunk);
  void drop_step() noexcept;

  size_t index_of(const PipelineAction& action) const;  // index of (chunk, micro-batch)
  ReceivedTensors& received_for(const PipelineAction& action);
  LiveActivation*& live_of(const PipelineAction& action);

  PipelineStage& stage_;
  const tensor::Context context_;
  const StageEdges edges_;
  const RunnerOptions options_;
  ScheduleShape shape_;
  std::vector<std::unique_ptr<LiveActivation>> activations_;
  std::vector<LiveActivation*> free_, live_;         // live_: indexed by (chunk, micro-batch); null: not live
  std::vector<ReceivedTensors> inputs_, gradients_;  // indexed by the action that needs them
  ReceivedTensors outgoing_;                         // results of the action that just finished
  std::vector<PendingSend> sending_;
  std::vector<Work> receiving_;
  std::vector<bool> deferred_;  // indexed by chunk
  bool broken_ = false;
  int num_live_ = 0, peak_live_ = 0;
  double exposed_ms_ = 0;
};

}  // namespace esp::parallel
