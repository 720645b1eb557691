#include "esp/autograd/tape.h"

#include <algorithm>

#include "esp/autograd/functions/weights.h"
#include "esp/base/check.h"
#include "esp/kernel/elementwise.h"

namespace esp::autograd {

using device::MemoryCategory;
using tensor::Tensor;

Tape::Tape(const tensor::Context& context) : context_(context) {}

Tape::~Tape() {
  clear();
}

void Node::backward_weight(Tape&) {
  ESP_CHECK(false, "tape node: has weights, but does not implement backward_weight");
}

Variable Tape::leaf(const Tensor& value) {
  return output(value);
}

Variable Tape::output(Tensor value) {
  slots_.push_back({value.shape(), value.dtype(), {}});
  return Variable(std::move(value), static_cast<int>(slots_.size()) - 1);
}

bool Tape::must_record(std::initializer_list<const Variable*> inputs, std::initializer_list<Weight*> weights) {
  const auto trained = [](const Weight* weight) { return weight && weight->trained; };
  if (tracking_)
    for (Weight* weight : weights)
      if (trained(weight)) tracked_.push_back(weight);
  if (!recording_) return false;
  for (const Variable* input : inputs)
    if (input && input->needs_grad()) return true;
  return std::any_of(weights.begin(), weights.end(), trained);
}

void Tape::seed(const Variable& output, Tensor gradient) {
  ESP_CHECK(output.needs_grad(), "cannot seed the output: none of its inputs or weights needs a gradient");
  accumulate_gradient(output.slot(), std::move(gradient));
}

GradientTarget Tape::gradient_into(const Variable& input) {
  return input.needs_grad() ? gradient_into(input.slot()) : GradientTarget{};
}

GradientTarget Tape::gradient_into(int index) {
  GradientSlot& slot = slots_[static_cast<size_t>(index)];
  if (!slot.gradient.defined()) {
    slot.gradient = tensor::empty(context_, slot.shape, slot.dtype, MemoryCategory::activation);
    return {slot.gradient, false};
  }
  slot.column_sums = {};
  // The stored tensor may be shared with other readers (a residual branch, a pending weight gradient). In that case the
  // sum goes to a copy.
  if (!slot.gradient.unique()) slot.gradient = tensor::copy_of(context_, slot.gradient, MemoryCategory::activation);
  return {slot.gradient, true};
}

void Tape::accumulate_gradient(int index, Tensor gradient) {
  GradientSlot& slot = slots_[static_cast<size_t>(index)];
  ESP_CHECK(gradient.shape().count() == slot.shape.count() && gradient.dtype() == slot.dtype,
            "tape: got a gradient of shape {}; expected shape {} and the dtype of the output", gradient.shape().text(),
            slot.shape.text());
  if (!slot.gradient.defined()) {
    slot.gradient = gradient.reshape(slot.shape);
    return;
  }
  GradientTarget into = gradient_into(index);
  kernel::add_to(into.tensor.data(), gradient.data(), gradient.count(), slot.dtype, context_.stream);
}

void Tape::set_column_sums(int index, Tensor sums) {
  slots_[static_cast<size_t>(index)].column_sums = std::move(sums);
}

Tensor Tape::scratch(const tensor::Shape& shape, DType dtype) const {
  return tensor::empty(context_, shape, dtype, MemoryCategory::buffer);
}

bool Tape::any_gradient(const RecordedNode& entry) const {
  for (int i = 0; i < entry.num_slots; ++i)
    if (slots_[static_cast<size_t>(entry.first_slot + i)].gradient.defined()) return true;
  return false;
}

void Tape::prepare_next() {
  if (!entries_.empty()) entries_.back().node->prepare(*this);
}

void Tape::finish(const RecordedNode& entry) {
  for (Weight* weight : entry.node->weights()) {
    ESP_CHECK(weight->pending > 0, "tape: a weight received more gradients than it has recorded uses");
    if (--weight->pending > 0) continue;
    weight->gradient();
    clear_if_stale(*weight, context_.stream);  // if no gradient was added, the stale one becomes zero
    if (weight->on_ready) weight->on_ready();
  }
  entry.node->~Node();
  for (int i = 0; i < entry.num_slots; ++i) take_gradient(entry.first_slot + i);
}

// If none of a node's outputs has a gradient, the node does not run, but finish() is still called.
void Tape::backward() {
  while (!entries_.empty()) {
    const RecordedNode entry = entries_.back();
    entries_.pop_back();
    if (any_gradient(entry)) {
      entry.node->backward_input(*this);
      if (!entry.node->weights().empty()) {
        prepare_next();
        entry.node->backward_weight(*this);
      }
    }
    finish(entry);
  }
}

void Tape::backward_inputs() {
  while (!entries_.empty()) {
    const RecordedNode entry = entries_.back();
    entries_.pop_back();
    const bool live = any_gradient(entry);
    if (live) entry.node->backward_input(*this);
    if (live && !entry.node->weights().empty()) {
      deferred_.push_back(entry);
    } else {
      finish(entry);
    }
  }
}

void Tape::backward_weights() {
  for (const RecordedNode& entry : deferred_) {
    entry.node->backward_weight(*this);
    finish(entry);
  }
  deferred_.clear();
}

Tensor Tape::take_gradient(const Variable& leaf) {
  ESP_CHECK(leaf.needs_grad());
  return take_gradient(leaf.slot());
}

Tensor Tape::take_gradient(int slot) {
  slots_[static_cast<size_t>(slot)].column_sums = {};
  return std::exchange(slots_[static_cast<size_t>(slot)].gradient, {});
}

void Tape::clear() {
  for (const auto* list : {&entries_, &deferred_})
    for (const RecordedNode& entry : *list) {
      for (Weight* weight : entry.node->weights()) --weight->pending;
      entry.node->~Node();
    }
  entries_.clear();
  deferred_.clear();
  slots_.clear();
  tracked_.clear();
  chunk_ = used_ = 0;
}

void Tape::start_weight_tracking() {
  ESP_CHECK(recording_ && !tracking_);
  recording_ = false;
  tracking_ = true;
  tracked_from_ = tracked_.size();
}

std::pair<size_t, size_t> Tape::stop_weight_tracking() {
  recording_ = true;
  tracking_ = false;
  return {tracked_from_, tracked_.size()};
}

std::span<Weight* const> Tape::tracked_weights(std::pair<size_t, size_t> range) const {
  return std::span(tracked_).subspan(range.first, range.second - range.first);
}

void* Tape::allocate_node(size_t bytes) {
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  ESP_CHECK(bytes <= kChunkBytes, "tape node: got {} bytes; expected at most {} (one arena chunk)", bytes, kChunkBytes);
  if (chunk_ < chunks_.size() && used_ + bytes > kChunkBytes) {
    ++chunk_;
    used_ = 0;
  }
  if (chunk_ == chunks_.size()) chunks_.push_back(std::make_unique<std::byte[]>(kChunkBytes));
  return chunks_[chunk_].get() + std::exchange(used_, used_ + bytes);
}

std::unique_ptr<Tape> Tape::borrow_tape() {
  if (spare_tapes_.empty()) return std::make_unique<Tape>(context_);
  auto tape = std::move(spare_tapes_.back());
  spare_tapes_.pop_back();
  return tape;
}

void Tape::return_tape(std::unique_ptr<Tape> tape) {
  tape->clear();
  spare_tapes_.push_back(std::move(tape));
}

}  // namespace esp::autograd
