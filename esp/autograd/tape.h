// What forward did, so that backward can be walked: nodes in the order they ran.
//
// A function (functions/*.h) computes its result, and where the tape records and an input needs a gradient leaves a
// Node holding what its backward reads. Gradients of variables gather in slots: the first to arrive is adopted, later
// ones are added in place. A node's saved tensors and the gradients of its outputs are dropped as soon as it has run.
//
// Each node's work comes in two parts: input gradients, which the layers before wait for, and weight gradients, which
// nobody waits for. `backward` runs both node by node; `backward_inputs` runs the first alone and keeps what the second
// needs for `backward_weights` later, as zero-bubble pipelines want it. The bits are the same either way.
//
// Nodes live in an arena that is kept from step to step, so a step that repeats allocates nothing. One thread at a
// time.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <new>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "esp/autograd/variable.h"
#include "esp/autograd/weight.h"
#include "esp/tensor/tensor.h"

namespace esp::autograd {

class Tape;

class Node {
 public:
  virtual ~Node() = default;
  // Reads the gradients of its outputs (tape.gradient_of) and writes those of its inputs (tape.gradient_into).
  virtual void backward_input(Tape& tape) = 0;
  // Adds the gradients of its weights. After backward_input, at once or later; only called when there are weights.
  virtual void backward_weight(Tape& tape);
  // The node recorded right after it has written its input gradients, its weight gradients are still to come: what
  // takes time elsewhere may begin. Called before backward_input, or not at all.
  virtual void prepare(Tape&) {}
  // The weights it will add gradients to; the tape counts them when the node is recorded and when it has run.
  virtual std::span<Weight* const> weights() const { return {}; }
};

// Where an input's gradient is to be written: over what is there, or added to it.
struct GradientTarget {
  tensor::Tensor tensor;
  bool accumulate = false;
};

class Tape {
 public:
  explicit Tape(const tensor::Context& context);
  ~Tape();
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  const tensor::Context& context() const { return context_; }

  // --- forward ---
  bool recording() const { return recording_; }
  void set_recording(bool on) { recording_ = on; }
  Variable leaf(const tensor::Tensor& value);  // gradient wanted: a stage's input, or a test's
  Variable output(tensor::Tensor value);       // of a node being recorded
  // Whether a function with these inputs and weights must leave a node. Weights met while not recording are noted where
  // recomputation asked for it.
  bool wants(std::initializer_list<const Variable*> inputs, std::initializer_list<Weight*> weights = {});
  // Places the node; its outputs are the `num_outputs` slots made last.
  template <typename N, typename... Args>
  N& record(int num_outputs, Args&&... args) {
    static_assert(std::is_base_of_v<Node, N> && alignof(N) <= kAlignment);
    N* node = new (room_for(sizeof(N))) N(std::forward<Args>(args)...);
    entries_.push_back({node, static_cast<int>(slots_.size()) - num_outputs, num_outputs});
    for (Weight* weight : node->weights()) ++weight->pending;
    return *node;
  }

  // --- backward ---
  void seed(const Variable& output, tensor::Tensor gradient);  // its gradient; several outputs may be seeded
  void backward();
  void backward_inputs();
  void backward_weights();
  // The gradient of a leaf after backward (undefined when none arrived). Taken out of the tape.
  tensor::Tensor take_gradient(const Variable& leaf);
  void clear();  // drops everything recorded, as if no gradient had arrived

  // --- for nodes ---
  const tensor::Tensor& gradient_of(int slot) const { return slots_[static_cast<size_t>(slot)].gradient; }
  // A tensor for the gradient of `input`, made on first use; none (undefined) when it needs no gradient.
  GradientTarget gradient_into(const Variable& input);
  GradientTarget gradient_into(int slot);
  tensor::Tensor take_gradient(int slot);  // moved out of the slot
  // Hands over a ready gradient: adopted where it is the first (it may be shared), else added.
  void give_gradient(int slot, tensor::Tensor gradient);
  // The sums of the columns of a slot's gradient, f32 [last dimension], where whoever made the gradient had them at
  // hand (a bias wants them); undefined where nobody has, or once more was added. Given after the gradient.
  void give_column_sums(int slot, tensor::Tensor sums);
  const tensor::Tensor& column_sums_of(int slot) const { return slots_[static_cast<size_t>(slot)].column_sums; }
  tensor::Tensor scratch(const tensor::Shape& shape, DType dtype) const;  // released with its last handle

  // --- for recomputation ---
  // While noting, nothing is recorded but the weights met are remembered; `stop_noting` gives them, valid until clear.
  void start_noting();
  std::pair<size_t, size_t> stop_noting();  // begin and end in noted()
  std::span<Weight* const> noted(std::pair<size_t, size_t> range) const;
  std::unique_ptr<Tape> borrow_tape();  // an empty tape of the same context, kept for reuse
  void return_tape(std::unique_ptr<Tape> tape);

 private:
  static constexpr size_t kAlignment = 16, kChunkBytes = size_t{64} << 10;
  struct Entry {
    Node* node;
    int first_slot, num_slots;
  };
  struct Slot {
    tensor::Shape shape;
    DType dtype;
    tensor::Tensor gradient, column_sums;
  };

  void* room_for(size_t bytes);
  bool any_gradient(const Entry& entry) const;
  void prepare_next();
  void finish(const Entry& entry);  // the node has run or never will: its weights hear of it, its memory goes

  tensor::Context context_;
  bool recording_ = true, noting_ = false;
  std::vector<Entry> entries_, held_;  // held_: inputs done, weights to come
  std::vector<Slot> slots_;
  std::vector<Weight*> noted_;
  size_t noted_from_ = 0;
  std::vector<std::unique_ptr<std::byte[]>> chunks_;
  size_t chunk_ = 0, used_ = 0;
  std::vector<std::unique_ptr<Tape>> spare_tapes_;
};

// Nothing is recorded while it lives.
class NoRecording {
 public:
  explicit NoRecording(Tape& tape) : tape_(tape), before_(tape.recording()) { tape.set_recording(false); }
  ~NoRecording() { tape_.set_recording(before_); }
  NoRecording(const NoRecording&) = delete;
  NoRecording& operator=(const NoRecording&) = delete;

 private:
  Tape& tape_;
  const bool before_;
};

}  // namespace esp::autograd
