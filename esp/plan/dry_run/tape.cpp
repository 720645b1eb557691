#include "esp/plan/dry_run/tape.h"

namespace esp::plan::dry_run {

void DryRunRecorder::allocate(MemoryCategory category, int64_t bytes) {
  by_category_[static_cast<size_t>(category)] += bytes;
  current_ += bytes;
  if (current_ > peak_) peak_ = current_, at_peak_ = by_category_;
}

void DryRunRecorder::free(MemoryCategory category, int64_t bytes) {
  by_category_[static_cast<size_t>(category)] -= bytes;
  current_ -= bytes;
}

void DryRunRecorder::reset_peak() {
  peak_ = current_;
  at_peak_ = by_category_;
}

DryRunVariable DryRunTape::output(BufferHandle value, int64_t bytes) {
  const int64_t size = bytes >= 0 ? bytes : value->bytes();
  slots_.push_back({size, {}});
  return {std::move(value), static_cast<int>(slots_.size()) - 1};
}

void DryRunTape::record(std::unique_ptr<DryRunNode> node, int num_slots) {
  node->num_slots = num_slots;
  node->first_slot = static_cast<int>(slots_.size()) - num_slots;
  for (DryRunWeight* weight : node->weights) ++weight->pending;
  nodes_.push_back(std::move(node));
}

bool DryRunTape::needs_gradient(std::initializer_list<const DryRunVariable*> inputs,
                                const std::vector<DryRunWeight*>& weights) {
  if (recomputed_weights) recomputed_weights->insert(recomputed_weights->end(), weights.begin(), weights.end());
  if (!recording_) return false;
  for (const DryRunVariable* input : inputs)
    if (input->slot >= 0) return true;
  return !weights.empty();
}

BufferHandle DryRunTape::gradient_buffer(int index) {
  OutputSlot& slot = slots_[static_cast<size_t>(index)];
  // The sum goes to a new buffer if another owner still references the gradient buffer.
  if (!slot.gradient || slot.gradient.use_count() > 1) slot.gradient = activation(slot.bytes);
  return slot.gradient;
}

void DryRunTape::add_gradient(int index, BufferHandle gradient) {
  OutputSlot& slot = slots_[static_cast<size_t>(index)];
  if (!slot.gradient)
    slot.gradient = std::move(gradient);
  else
    gradient_buffer(index);
}

void DryRunTape::gradient(DryRunWeight* weight) {
  if (weight) hooks_.gradient(*weight);
}

bool DryRunTape::any_gradient(const DryRunNode& node) const {
  for (int i = 0; i < node.num_slots; ++i)
    if (slots_[static_cast<size_t>(node.first_slot + i)].gradient) return true;
  return false;
}

void DryRunTape::finish(std::unique_ptr<DryRunNode> node) {
  for (DryRunWeight* weight : node->weights) {
    if (--weight->pending > 0) continue;
    hooks_.gradient(*weight);
    hooks_.ready(*weight);
  }
  const int first = node->first_slot, count = node->num_slots;
  node.reset();
  for (int i = 0; i < count; ++i) slots_[static_cast<size_t>(first + i)].gradient = {};
}

void DryRunTape::backward() {
  while (!nodes_.empty()) {
    std::unique_ptr<DryRunNode> node = std::move(nodes_.back());
    nodes_.pop_back();
    if (any_gradient(*node)) {
      node->backward_input(*this);
      if (!node->weights.empty()) {
        if (!nodes_.empty()) nodes_.back()->prepare(*this);
        node->backward_weight(*this);
      }
    }
    finish(std::move(node));
  }
}

void DryRunTape::backward_inputs() {
  while (!nodes_.empty()) {
    std::unique_ptr<DryRunNode> node = std::move(nodes_.back());
    nodes_.pop_back();
    const bool live = any_gradient(*node);
    if (live) node->backward_input(*this);
    if (live && !node->weights.empty())
      deferred_.push_back(std::move(node));
    else
      finish(std::move(node));
  }
}

void DryRunTape::backward_weights() {
  for (std::unique_ptr<DryRunNode>& node : deferred_) {
    node->backward_weight(*this);
    finish(std::move(node));
  }
  deferred_.clear();
}

void DryRunTape::clear() {
  nodes_.clear();
  deferred_.clear();
  slots_.clear();
}

}  // namespace esp::plan::dry_run
