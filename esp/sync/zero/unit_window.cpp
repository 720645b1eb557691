#include "esp/sync/zero/unit_window.h"

#include <algorithm>

#include "esp/base/clock.h"

namespace esp::sync {

using tensor::Tensor;

UnitWindow::UnitWindow(nn::ParameterList& parameters, const tensor::Context& context, UnitGather& gather,
                       const Options& options)
    : parameters_(parameters),
      context_(context),
      gather_(gather),
      options_(options),
      at_(parameters.units().size(), UnitState::shards),
      whole_(parameters.units().size()),
      computed_(parameters.units().size()) {
  for (nn::Parameter& p : parameters.all())
    p.weight.on_use = [this, unit = static_cast<size_t>(p.unit)] {
      if (unit != current_) use(unit);
    };
}

void UnitWindow::begin_pass(bool training) {
  order_ = &orders_[training ? 1 : 0];
  known_ = !order_->empty();
  next_ = 0;
  current_ = kNone;
  training_ = training;
  in_backward_ = false;
  if (training) computed_.assign(computed_.size(), {});
}

void UnitWindow::begin_backward() {
  stop_clock();
  turn_ = next_;
  in_backward_ = true;
  if (!options_.keep && !options_.stay) drop_all();
  current_ = kNone;
}

void UnitWindow::end_pass() {
  stop_clock();
  if (order_ && known_ && next_ < order_->size()) order_->resize(next_);  // this walk was shorter
  current_ = kNone;
  next_ = 0;
  in_backward_ = false;
  known_ = options_.stay && order_ && !order_->empty();
  if (order_) look_ahead();
  for (size_t unit = 0; unit < at_.size(); ++unit)
    if (at_[unit] != UnitState::shards && !needed_soon(unit)) drop(unit);
  order_ = nullptr;
}

void UnitWindow::values_changed() {
  drop_all();
  gather_.values_changed();
}

void UnitWindow::stop_clock() {
  if (current_ == kNone || !training_) return;
  Computed& of = computed_[current_];
  (in_backward_ ? of.backward_ms : of.forward_ms) += static_cast<double>(now_ns() - began_ns_) * 1e-6;
}

void UnitWindow::note(size_t unit) {
  if (known_ && next_ < order_->size() && (*order_)[next_] == unit) {
    ++next_;
    return;
  }
  known_ = false;
  order_->resize(next_);
  order_->push_back(unit);
  ++next_;
}

// Where nothing stays between passes, forward does not prefetch past the turn. Where units stay, the next pass may
// begin with the last units of this one: they are kept, but not fetched before the next pass is certain.
void UnitWindow::look_ahead() {
  soon_.clear();
  num_to_fetch_ = 0;
  if (!known_) return;
  const auto see = [this](size_t begin, size_t end) {
    for (size_t i = begin; i < end && static_cast<int64_t>(soon_.size()) < options_.ahead + 2; ++i) {
      const size_t unit = (*order_)[i];
      if (unit != current_ && std::find(soon_.begin(), soon_.end(), unit) == soon_.end()) soon_.push_back(unit);
    }
  };
  const bool to_the_turn = training_ && !in_backward_ && !options_.keep && !options_.stay;
  see(next_, to_the_turn ? std::min(turn_, order_->size()) : order_->size());
  num_to_fetch_ = soon_.size();
  if (options_.stay) see(0, next_);
}

bool UnitWindow::needed_soon(size_t unit) const {
  const auto end = soon_.begin() + std::min<std::ptrdiff_t>(static_cast<std::ptrdiff_t>(soon_.size()), options_.ahead);
  return std::find(soon_.begin(), end, unit) != end;
}

void UnitWindow::use(size_t unit) {
  ESP_CHECK(order_, "unit {} is used outside a pass", parameters_.units()[unit].name);
  stop_clock();
  current_ = unit;
  note(unit);
  look_ahead();
  if (!options_.keep) drop_unless_needed();
  fetch(unit);
  for (size_t i = 0; i < num_to_fetch_; ++i) {
    const int beyond = static_cast<int>(static_cast<int64_t>(i) - options_.ahead) + 1;
    if (beyond <= 0) {
      fetch(soon_[i]);
    } else if (at_[soon_[i]] == UnitState::shards) {
      gather_.hint(soon_[i], beyond);
    }
  }
  if (at_[unit] == UnitState::gathering) {
    gather_.finish(unit, whole_[unit]);
    parameters_.bind_values(parameters_.units()[unit], whole_[unit]);
    at_[unit] = UnitState::gathered;
  }
  began_ns_ = now_ns();
}

void UnitWindow::fetch(size_t unit) {
  if (at_[unit] != UnitState::shards) return;
  const auto& of = parameters_.units()[unit];
  whole_[unit] = tensor::empty(context_, {of.count}, options_.storage, device::MemoryCategory::buffer);
  gather_.start(unit, whole_[unit]);
  at_[unit] = UnitState::gathering;
  ++num_gathers_;
}

void UnitWindow::drop_unless_needed() {
  for (size_t unit = 0; unit < at_.size(); ++unit)
    if (unit != current_ && at_[unit] == UnitState::gathered && !needed_soon(unit)) drop(unit);
}

void UnitWindow::open(size_t unit) {
  const auto& of = parameters_.units()[unit];
  whole_[unit] = tensor::empty(context_, {of.count}, options_.storage, device::MemoryCategory::buffer);
  parameters_.bind_values(parameters_.units()[unit], whole_[unit]);
  at_[unit] = UnitState::gathered;
}

void UnitWindow::drop(size_t unit) {
  if (at_[unit] == UnitState::gathering) gather_.finish(unit, whole_[unit]);  // no write may reach freed memory
  parameters_.bind_values(parameters_.units()[unit], {});
  whole_[unit] = {};
  at_[unit] = UnitState::shards;
}

void UnitWindow::drop_all() {
  for (size_t unit = 0; unit < at_.size(); ++unit)
    if (at_[unit] != UnitState::shards) drop(unit);
}

}  // namespace esp::sync
