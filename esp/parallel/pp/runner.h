// PipelineRunner: executes one stage's plan (steps.h) step by step, computes through a Stage, and communicates with the
// neighbours.
//
// Receives start one action ahead, into pool memory; sends start when their action is done. Neither is waited for
// before it must be, so transfers overlap with computation; waiting time is counted. Every live (chunk, micro-batch)
// has its own tape, kept for reuse: after the first step of a plan nothing is allocated.
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

// Tensors passed between stages: the residual stream and, behind an encoder, the encoder output (else undefined).
struct StageTensors {
  autograd::Variable x, memory;
};

// Their shapes; a memory shape of rank 0 means none.
struct StageTensorShapes {
  tensor::Shape x, memory;
  DType dtype = DType::f32;
};

// The computation of one stage; implemented by the owner of the model.
class Stage {
 public:
  struct ForwardResult {
    StageTensors carried;  // ignored for the last stage chunk
    autograd::Loss
        loss;  // of the last stage chunk; others may have an auxiliary loss (seeded with 1 if it needs a gradient)
  };

  virtual ~Stage() = default;
  // Shapes received from the previous piece and sent to the next. The first piece is never asked for its input, nor the
  // last for its output.
  virtual StageTensorShapes input_shape(int chunk, int micro_batch) const = 0;
  virtual StageTensorShapes output_shape(int chunk, int micro_batch) const = 0;
  // Records on the tape, which does not record without a backward. `input` is empty for the first piece.
  virtual ForwardResult forward(int chunk, int micro_batch, autograd::Tape& tape, const StageTensors& input) = 0;
  // Notifications besides forward: before a B; after any action, within its span.
  virtual void begin_backward(int chunk, int micro_batch);
  virtual void end_action(const PipelineAction& action);
  // The chunk's weights, equal at every call. A weight used by two chunks is listed by both.
  virtual std::span<autograd::Weight* const> weights(int chunk) const = 0;
};

// The communicators of a stage, of two ranks each; null at the ends of the model. With several chunks the last stage
// connects to the first.
struct StageEdges {
  comm::Communicator* activations_in = nullptr;   // from the stage before
  comm::Communicator* gradients_out = nullptr;    // to the stage before
  comm::Communicator* activations_out = nullptr;  // to the stage after
  comm::Communicator* gradients_in = nullptr;     // from the stage after
};

struct RunnerOptions {
  Duration timeout = std::chrono::minutes(10);  // per wait
  obs::TraceRow* trace = nullptr;               // spans of actions ("F3") and waits
};

class PipelineRunner {
 public:
  PipelineRunner(Stage& stage, const tensor::Context& context, const StageEdges& edges, const RunnerOptions& options);
  ~PipelineRunner();
  PipelineRunner(const PipelineRunner&) = delete;
  PipelineRunner& operator=(const PipelineRunner&) = delete;

  // Runs one step, or one evaluation if the plan has no backward. All sends have completed when it returns.
  void run(const StagePlan& plan);

  double exposed_ms() const { return exposed_ms_; }  // waiting for neighbours
  void reset_times() { exposed_ms_ = 0; }
  int num_live() const { return num_live_; }    // live (chunk, micro-batch) activations
  int peak_live() const { return peak_live_; }  // maximum in the last run
  uint64_t bytes_being_sent() const;            // kept until the neighbour has received them

 private:
  // Forward is done; backward (or its weight part) is not.
  struct Live {
    explicit Live(const tensor::Context& context) : tape(context) {}
    autograd::Tape tape;
    StageTensors input;   // leaves
    StageTensors output;  // gradient slots; the values have been sent
    autograd::Variable loss;
  };
  struct ReceivedTensors {  // the tensors of a StageTensors, or their gradients
    tensor::Tensor x, memory;
    Work x_arrived, memory_arrived;
  };
  struct Sending {
    tensor::Tensor tensor;
    Work work;
  };

  void prepare(const StagePlan& plan);
  void take(const StagePlan& plan, const StageStep& step);
  void compute(const StagePlan& plan, const PipelineAction& action);
  void start_receive(const PipelineAction& action);
  void start_send(const PipelineAction& action);
  void send(comm::Communicator* to, const tensor::Tensor& tensor);
  void forward(const StagePlan& plan, const PipelineAction& action);
  void backward(const StagePlan& plan, const PipelineAction& action);
  void finish(const PipelineAction& action);
  void seed(Live& live, ReceivedTensors gradients);
  ReceivedTensors arrived(const PipelineAction& action);
  tensor::Tensor gradient_of(Live& live, const autograd::Variable& leaf, const tensor::Shape& shape, DType dtype) const;
  void wait(const Work& work, const char* what, const PipelineAction& action);
  void defer_ready_all(int num_chunks);
  void resume_ready_of(int chunk);
  void abandon() noexcept;

  size_t index_of(const PipelineAction& action) const;  // chunk and micro-batch
  ReceivedTensors& received_for(const PipelineAction& action);
  Live*& live_of(const PipelineAction& action);

  Stage& stage_;
  const tensor::Context context_;
  const StageEdges edges_;
  const RunnerOptions options_;
  ScheduleShape shape_;
  std::vector<std::unique_ptr<Live>> all_;
  std::vector<Live*> spare_, live_;                  // live_: by chunk and micro-batch; null: not alive
  std::vector<ReceivedTensors> inputs_, gradients_;  // by the action that needs them
  ReceivedTensors outgoing_;                         // of the action just done
  std::vector<Sending> sending_;
  std::vector<Work> receiving_;
  std::vector<bool> deferred_;  // by chunk
  bool broken_ = false;
  int num_live_ = 0, peak_live_ = 0;
  double exposed_ms_ = 0;
};

}  // namespace esp::parallel
