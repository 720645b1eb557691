#include "esp/plan/ghost/tape.h"

namespace esp::plan::ghost {

void Account::add(MemoryCategory category, int64_t bytes) {
  of_[static_cast<size_t>(category)] += bytes;
  now_ += bytes;
  if (now_ > peak_) peak_ = now_, at_peak_ = of_;
}

void Account::remove(MemoryCategory category, int64_t bytes) {
  of_[static_cast<size_t>(category)] -= bytes;
  now_ -= bytes;
}

void Account::reset_peak() {
  peak_ = now_;
  at_peak_ = of_;
}

Variable Tape::output(Tensor value, int64_t bytes) {
  const int64_t size = bytes >= 0 ? bytes : value->bytes();
  slots_.push_back({size, {}});
  return {std::move(value), static_cast<int>(slots_.size()) - 1};
}

void Tape::record(std::unique_ptr<Node> node, int num_slots) {
  node->num_slots = num_slots;
  node->first_slot = static_cast<int>(slots_.size()) - num_slots;
  for (Weight* weight : node->weights) ++weight->pending;
  entries_.push_back(std::move(node));
}

bool Tape::wants(std::initializer_list<const Variable*> inputs, const std::vector<Weight*>& weights) {
  if (noting) noting->insert(noting->end(), weights.begin(), weights.end());
  if (!recording_) return false;
  for (const Variable* input : inputs)
    if (input->slot >= 0) return true;
  return !weights.empty();
}

Tensor Tape::gradient_into(int index) {
  Slot& slot = slots_[static_cast<size_t>(index)];
  // A gradient that is still read elsewhere is copied before the addition.
  if (!slot.gradient || slot.gradient.use_count() > 1) slot.gradient = activation(slot.bytes);
  return slot.gradient;
}

void Tape::give_gradient(int index, Tensor gradient) {
  Slot& slot = slots_[static_cast<size_t>(index)];
  if (!slot.gradient)
    slot.gradient = std::move(gradient);
  else
    gradient_into(index);
}

void Tape::gradient(Weight* weight) {
  if (weight) holder_.gradient(*weight);
}

bool Tape::any_gradient(const Node& node) const {
  for (int i = 0; i < node.num_slots; ++i)
    if (slots_[static_cast<size_t>(node.first_slot + i)].gradient) return true;
  return false;
}

void Tape::finish(std::unique_ptr<Node> node) {
  for (Weight* weight : node->weights) {
    if (--weight->pending > 0) continue;
    holder_.gradient(*weight);
    holder_.ready(*weight);
  }
  const int first = node->first_slot, count = node->num_slots;
  node.reset();
  for (int i = 0; i < count; ++i) slots_[static_cast<size_t>(first + i)].gradient = {};
}

void Tape::backward() {
  while (!entries_.empty()) {
    std::unique_ptr<Node> node = std::move(entries_.back());
    entries_.pop_back();
    if (any_gradient(*node)) {
      node->backward_input(*this);
      if (!node->weights.empty()) {
        if (!entries_.empty()) entries_.back()->prepare(*this);
        node->backward_weight(*this);
      }
    }
    finish(std::move(node));
  }
}

void Tape::backward_inputs() {
  while (!entries_.empty()) {
    std::unique_ptr<Node> node = std::move(entries_.back());
    entries_.pop_back();
    const bool live = any_gradient(*node);
    if (live) node->backward_input(*this);
    if (live && !node->weights.empty())
      held_.push_back(std::move(node));
    else
      finish(std::move(node));
  }
}

void Tape::backward_weights() {
  for (std::unique_ptr<Node>& node : held_) {
    node->backward_weight(*this);
    finish(std::move(node));
  }
  held_.clear();
}

void Tape::clear() {
  entries_.clear();
  held_.clear();
  slots_.clear();
}

}  // namespace esp::plan::ghost
