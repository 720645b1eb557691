// The autograd tape: nodes in the order in which forward ran them.
//
// A function (functions/*.h) computes its result. If the tape records and an input needs a gradient, the function
// records a Node with the tensors that backward needs. Gradients of variables accumulate in slots: the first tensor is
// stored as it is, later ones are added in place. The saved tensors of a node and its output gradients are released as
// soon as the node has run.
//
// A node has two parts: input gradients, which earlier layers wait for, and weight gradients, which can run later.
// `backward` runs both parts node by node. `backward_inputs` runs only the first part and keeps what `backward_weights`
// needs later (zero-bubble pipelines). Results are bit-identical.
//
// Nodes live in an arena that is reused between steps, so repeated steps allocate nothing. Not thread-safe.
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
  // Adds the gradients of the node's weights. Runs after backward_input, immediately or later, and only if there are
  // weights.
  virtual void backward_weight(Tape& tape);
  // Called at most once, before backward_input of this node. At that time the preceding node in backward order has
  // computed its input gradients, but not yet its weight gradients. A node can start communication here, so that it
  // overlaps with those weight gradients.
  virtual void prepare(Tape&) {}
  // The weights to which the node adds gradients. The tape counts their pending uses.
  virtual std::span<Weight* const> weights() const { return {}; }
};

// Destination of an input's gradient. The node adds to the tensor if `accumulate` is true; otherwise it overwrites it.
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
  // a variable that receives a gradient, for example the input of a pipeline stage
  Variable leaf(const tensor::Tensor& value);
  Variable output(tensor::Tensor value);  // the output of a node that is being recorded
  // True if a function with these inputs and weights must record a node. While weight tracking is on, stores the
  // weights and returns false.
  bool must_record(std::initializer_list<const Variable*> inputs, std::initializer_list<Weight*> weights = {});
  // Constructs the node. Its outputs are the `num_outputs` slots created last.
  template <typename N, typename... Args>
  N& record(int num_outputs, Args&&... args) {
    static_assert(std::is_base_of_v<Node, N> && alignof(N) <= kAlignment);
    N* node = new (allocate_node(sizeof(N))) N(std::forward<Args>(args)...);
    entries_.push_back({node, static_cast<int>(slots_.size()) - num_outputs, num_outputs});
    for (Weight* weight : node->weights()) ++weight->pending;
    return *node;
  }

  // --- backward ---
  // sets the gradient of an output; several outputs may be seeded
  void seed(const Variable& output, tensor::Tensor gradient);
  void backward();
  void backward_inputs();
  void backward_weights();
  // Moves out the gradient of a leaf after backward. Undefined if the leaf has none.
  tensor::Tensor take_gradient(const Variable& leaf);
  void clear();  // drops all nodes without running them

  // --- for nodes ---
  const tensor::Tensor& gradient_of(int slot) const { return slots_[static_cast<size_t>(slot)].gradient; }
  // The gradient tensor of `input`, created on first use; undefined if it needs no gradient.
  GradientTarget gradient_into(const Variable& input);
  GradientTarget gradient_into(int slot);
  tensor::Tensor take_gradient(int slot);  // moves the gradient out of the slot
  // Adds a complete gradient to a slot. The first one is stored without a copy, so it may be shared; later ones are
  // added to it.
  void accumulate_gradient(int slot, tensor::Tensor gradient);
  // Column sums of a slot's gradient, f32 [last dimension], which a later node uses as its bias gradient. Defined only
  // if the node that computed the gradient also set the sums, and no other gradient was added since. Call
  // set_column_sums after the gradient is stored.
  void set_column_sums(int slot, tensor::Tensor sums);
  const tensor::Tensor& column_sums_of(int slot) const { return slots_[static_cast<size_t>(slot)].column_sums; }
  // temporary memory, freed with its last handle
  tensor::Tensor scratch(const tensor::Shape& shape, DType dtype) const;

  // While tracking is on, the tape records no nodes, but stores the weights that functions use. `stop_weight_tracking`
  // returns their range, which is valid until `clear`.
  void start_weight_tracking();
  std::pair<size_t, size_t> stop_weight_tracking();  // begin and end of the range, for tracked_weights
  std::span<Weight* const> tracked_weights(std::pair<size_t, size_t> range) const;
  std::unique_ptr<Tape> borrow_tape();  // an empty tape with the same context, reused after return_tape
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

  void* allocate_node(size_t bytes);
  bool any_gradient(const RecordedNode& entry) const;
  void prepare_next();
  // called when the node has run or is skipped: updates its weights and frees its memory
  void finish(const RecordedNode& entry);

  tensor::Context context_;
  bool recording_ = true, tracking_ = false;
  std::vector<RecordedNode> entries_, deferred_;  // deferred_: backward_input has run, backward_weight has not
  std::vector<GradientSlot> slots_;
  std::vector<Weight*> tracked_;
  size_t tracked_from_ = 0;
  std::vector<std::unique_ptr<std::byte[]>> chunks_;
  size_t chunk_ = 0, used_ = 0;
  std::vector<std::unique_ptr<Tape>> spare_tapes_;
};

// Scope guard: the tape records nothing during its lifetime.
class NoGradGuard {
 public:
  explicit NoGradGuard(Tape& tape) : tape_(tape), before_(tape.recording()) { tape.set_recording(false); }
  ~NoGradGuard() { tape_.set_recording(before_); }
  NoGradGuard(const NoGradGuard&) = delete;
  NoGradGuard& operator=(const NoGradGuard&) = delete;

 private:
  Tape& tape_;
  const bool before_;
};

}  // namespace esp::autograd
