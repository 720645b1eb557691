// One stage of a pipeline, run for real: takes a stage's plan (steps.h) step by step, computes through a Stage, and
// talks to the neighbours.
//
// Receives are started one action ahead into memory of the pool, sends when their action is done, and neither is waited
// for before it must be, so transfers run while the stage computes; what time was spent waiting is counted. Every live
// (chunk, micro-batch) has a tape of its own, kept for reuse: after the first step of a plan nothing is allocated.
//
// A training step holds all weights from its beginning and lets go of a chunk's when the backward of its last
// micro-batch begins (hold.h): a weight's `on_ready` is called once a step. One thread. The stage, the context and the
// communicators are lent. After an error in the middle of a step the runner is of no more use, and who destroys it
// while transfers are under way ends their groups: the memory they work on is about to go.
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

// What passes from piece to piece: the stream and, behind an encoder, what the decoder looks at (else undefined).
struct Carried {
  autograd::Variable x, memory;
};

// Shapes of it; memory of rank 0: there is none.
struct CarriedShape {
  tensor::Shape x, memory;
  DType dtype = DType::f32;
};

// What one stage computes. Written by whoever owns the model.
class Stage {
 public:
  struct Output {
    Carried carried;      // of the last piece: ignored
    autograd::Loss loss;  // of the last piece; others may have one too (it is seeded with 1 where it needs a gradient)
  };

  virtual ~Stage() = default;
  // What reaches this chunk for the micro-batch from the piece before, and what it hands to the piece after. The first
  // piece is never asked for its input, nor the last for its output.
  virtual CarriedShape input_shape(int chunk, int micro_batch) const = 0;
  virtual CarriedShape output_shape(int chunk, int micro_batch) const = 0;
  // Records on the tape, which does not record where there is no backward. `input` is empty for the first piece.
  virtual Output forward(int chunk, int micro_batch, autograd::Tape& tape, const Carried& input) = 0;
  // Word of what the runner does beside forward, for who wants it: before a B; after any action, within its span.
  virtual void begin_backward(int chunk, int micro_batch);
  virtual void end_action(const Action& action);
  // The chunk's weights: the same at every call. One that two chunks use is named by both.
  virtual std::span<autograd::Weight* const> weights(int chunk) const = 0;
};

// The communicators of a stage, of two ranks each; null where the model ends. With several chunks the last stage's
// "after" is the first stage, whose "before" it is.
struct StageEdges {
  comm::Communicator* activations_in = nullptr;   // from the stage before
  comm::Communicator* gradients_out = nullptr;    // to the stage before
  comm::Communicator* activations_out = nullptr;  // to the stage after
  comm::Communicator* gradients_in = nullptr;     // from the stage after
};

class Runner {
 public:
  struct Options {
    Duration timeout = std::chrono::minutes(10);  // of each wait
    obs::TraceRow* trace = nullptr;               // a span for every action, named "F3", and for every wait
  };
  Runner(Stage& stage, const tensor::Context& context, const StageEdges& edges, const Options& options);
  ~Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  // One step, or one evaluation where the plan has no backward. Everything it sent has left when it returns.
  void run(const StagePlan& plan);

  double exposed_ms() const { return exposed_ms_; }  // waited for neighbours
  void forget_times() { exposed_ms_ = 0; }
  int num_live() const { return num_live_; }    // (chunk, micro-batch) activations held now
  int peak_live() const { return peak_live_; }  // and the most, in the last run
  uint64_t bytes_being_sent() const;            // held only until a neighbour has them

 private:
  // Forward has run, backward (or the weights' part of it) has not.
  struct Live {
    explicit Live(const tensor::Context& context) : tape(context) {}
    autograd::Tape tape;
    Carried input;   // leaves
    Carried output;  // their slots; the values belong to the neighbour now
    autograd::Variable loss;
  };
  struct Parcel {  // the tensors of a Carried, or their gradients
    tensor::Tensor x, memory;
    Work x_arrived, memory_arrived;
  };
  struct Sending {
    tensor::Tensor tensor;
    Work work;
  };

  void prepare(const StagePlan& plan);
  void take(const StagePlan& plan, const Step& step);
  void compute(const StagePlan& plan, const Action& action);
  void start_receive(const Action& action);
  void start_send(const Action& action);
  void send(comm::Communicator* to, const tensor::Tensor& tensor);
  void forward(const StagePlan& plan, const Action& action);
  void backward(const StagePlan& plan, const Action& action);
  void finish(const Action& action);
  void seed(Live& live, Parcel gradients);
  Parcel arrived(const Action& action);
  tensor::Tensor gradient_of(Live& live, const autograd::Variable& leaf, const tensor::Shape& shape, DType dtype) const;
  void wait(const Work& work, const char* what, const Action& action);
  void hold_all(int num_chunks);
  void let_go_of(int chunk);
  void abandon() noexcept;

  size_t index_of(const Action& action) const;  // chunk and micro-batch
  Parcel& parcel_for(const Action& action);
  Live*& live_of(const Action& action);

  Stage& stage_;
  const tensor::Context context_;
  const StageEdges edges_;
  const Options options_;
  ScheduleShape shape_;
  std::vector<std::unique_ptr<Live>> all_;
  std::vector<Live*> spare_, live_;         // live_: by chunk and micro-batch; null: not alive
  std::vector<Parcel> inputs_, gradients_;  // by the action that needs them
  Parcel outgoing_;                         // of the action just done
  std::vector<Sending> sending_;
  std::vector<Work> receiving_;
  std::vector<bool> held_;  // by chunk
  bool broken_ = false;
  int num_live_ = 0, peak_live_ = 0;
  double exposed_ms_ = 0;
};

}  // namespace esp::parallel
