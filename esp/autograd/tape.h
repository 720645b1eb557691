// The autograd tape: nodes in the order forward ran them.
//
// A function (functions/*.h) computes its result; if the tape records and an input needs a gradient, it leaves a Node
// holding what its backward reads. Gradients of variables accumulate in slots: the first is adopted, later ones are
// added in place. A node's saved tensors and its output gradients are released as soon as it has run.
//
// A node has two parts: input gradients, which earlier layers wait for, and weight gradients, which can run later.
// `backward` runs both node by node. `backward_inputs` runs the first part alone and keeps what `backward_weights`
// needs later (zero-bubble pipelines). The bits are the same either way.
//
// Nodes live in an arena reused between steps, so a repeated step allocates nothing. One thread at a time.
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
  // Called before backward_input (or never), when the node recorded right after it has computed its input gradients and
  // its weight gradients are still to run: communication may start here.
  virtual void prepare(Tape&) {}
  // The weights it adds gradients to; the tape counts their pending uses.
  virtual std::span<Weight* const> weights() const { return {}; }
};

// Destination of an input's gradient: overwrite, or accumulate.
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
  Variable leaf(const tensor::Tensor& value);  // with gradient: a stage's input, or a test's
  Variable output(tensor::Tensor value);       // of a node being recorded
  // Whether a function with these inputs and weights must record a node. Tracks the weights while recomputation asks
  // for it.
  bool wants(std::initializer_list<const Variable*> inputs, std::initializer_list<Weight*> weights = {});
  // Constructs the node; its outputs are the `num_outputs` slots created last.
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
  // Moves out the gradient of a leaf after backward (undefined if none arrived).
  tensor::Tensor take_gradient(const Variable& leaf);
  void clear();  // drops everything recorded, as if no gradient had arrived

  // --- for nodes ---
  const tensor::Tensor& gradient_of(int slot) const { return slots_[static_cast<size_t>(slot)].gradient; }
  // The gradient tensor of `input`, created on first use; undefined if it needs no gradient.
  GradientTarget gradient_into(const Variable& input);
  GradientTarget gradient_into(int slot);
  tensor::Tensor take_gradient(int slot);  // moved out of the slot
  // Stores a complete gradient: adopted if it is the first (it may be shared), else added.
  void give_gradient(int slot, tensor::Tensor gradient);
  // Column sums of a slot's gradient, f32 [last dimension], if its producer computed them (for bias gradients).
  // Undefined if not, or after another gradient was added. Set after the gradient.
  void give_column_sums(int slot, tensor::Tensor sums);
  const tensor::Tensor& column_sums_of(int slot) const { return slots_[static_cast<size_t>(slot)].column_sums; }
  tensor::Tensor scratch(const tensor::Shape& shape, DType dtype) const;  // released with its last handle

  // While tracking, nothing is recorded but the weights used are remembered; `stop_weight_tracking` returns them, valid
  // until clear.
  void start_weight_tracking();
  std::pair<size_t, size_t> stop_weight_tracking();  // begin and end in noted()
  std::span<Weight* const> tracked_weights(std::pair<size_t, size_t> range) const;
  std::unique_ptr<Tape> borrow_tape();  // an empty tape of the same context, kept for reuse
  void return_tape(std::unique_ptr<Tape> tape);

 private:
  static constexpr size_t kAlignment = 16, kChunkBytes = size_t{64} << 10;
  struct RecordedNode {
    Node* node;
    int first_slot, num_slots;
  };
  struct GradientSlot {
    tensor::Shape shape;
    DType dtype;
    tensor::Tensor gradient, column_sums;
  };

  void* room_for(size_t bytes);
  bool any_gradient(const RecordedNode& entry) const;
  void prepare_next();
  void finish(const RecordedNode& entry);  // the node has run or never will: updates its weights, frees its memory

  tensor::Context context_;
  bool recording_ = true, tracking_ = false;
  std::vector<RecordedNode> entries_, held_;  // held_: backward_input done, backward_weight pending
  std::vector<GradientSlot> slots_;
  std::vector<Weight*> tracked_;
  size_t tracked_from_ = 0;
  std::vector<std::unique_ptr<std::byte[]>> chunks_;
  size_t chunk_ = 0, used_ = 0;
  std::vector<std::unique_ptr<Tape>> spare_tapes_;
};

// Scope guard: nothing is recorded while it lives.
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
