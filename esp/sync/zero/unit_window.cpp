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
      states_(parameters.units().size(), UnitState::shards),
      whole_(parameters.units().size()),
      computed_(parameters.units().size()) {
  for (nn::Parameter& p : parameters.all())
    p.weight.on_use = [this, unit = static_cast<size_t>(p.unit)] {
      if (unit != current_) use(unit);
    };
}

void UnitWindow::begin_pass(bool training) {
  order_ = &orders_[training ? 1 : 0];
  order_is_valid_ = !order_->empty();
  next_ = 0;
  current_ = kNone;
  training_ = training;
  in_backward_ = false;
  if (training) computed_.assign(computed_.size(), {});
}

void UnitWindow::begin_backward() {
  stop_clock();
  backward_begin_ = next_;
  in_backward_ = true;
  if (!options_.keep_gathered && !options_.keep_window) drop_all();
  current_ = kNone;
}

void UnitWindow::end_pass() {
  stop_clock();
  if (order_ && order_is_valid_ && next_ < order_->size())
    order_->resize(next_);  // the pass used fewer units than were recorded
  current_ = kNone;
  next_ = 0;
  in_backward_ = false;
  order_is_valid_ = options_.keep_window && order_ && !order_->empty();
  if (order_) prefetch_next();
  for (size_t unit = 0; unit < states_.size(); ++unit)
    if (states_[unit] != UnitState::shards && !needed_soon(unit)) drop(unit);
  order_ = nullptr;
}

void UnitWindow::values_changed() {
  drop_all();
  gather_.values_changed();
}

void UnitWindow::stop_clock() {
  if (current_ == kNone || !training_) return;
  ComputeTimes& of = computed_[current_];
  (in_backward_ ? of.backward_ms : of.forward_ms) += static_cast<double>(now_ns() - began_ns_) * 1e-6;
}

void UnitWindow::record_use(size_t unit) {
  if (order_is_valid_ && next_ < order_->size() && (*order_)[next_] == unit) {
    ++next_;
    return;
  }
  order_is_valid_ = false;
  order_->resize(next_);
  order_->push_back(unit);
  ++next_;
}

// Chooses the units to prefetch. If no units are kept between passes, forward prefetches only up to the beginning of
// backward. If units are kept (keep_window), the first units of the next pass are kept too, but they are not fetched
// before that pass begins.
void UnitWindow::prefetch_next() {
  upcoming_.clear();
  num_to_fetch_ = 0;
  if (!order_is_valid_) return;
  const auto see = [this](size_t begin, size_t end) {
    for (size_t i = begin; i < end && static_cast<int64_t>(upcoming_.size()) < options_.ahead + 2; ++i) {
      const size_t unit = (*order_)[i];
      if (unit != current_ && std::find(upcoming_.begin(), upcoming_.end(), unit) == upcoming_.end())
        upcoming_.push_back(unit);
    }
  };
  const bool to_the_turn = training_ && !in_backward_ && !options_.keep_gathered && !options_.keep_window;
  see(next_, to_the_turn ? std::min(backward_begin_, order_->size()) : order_->size());
  num_to_fetch_ = upcoming_.size();
  if (options_.keep_window) see(0, next_);
}

bool UnitWindow::needed_soon(size_t unit) const {
  const auto end =
      upcoming_.begin() + std::min<std::ptrdiff_t>(static_cast<std::ptrdiff_t>(upcoming_.size()), options_.ahead);
  return std::find(upcoming_.begin(), end, unit) != end;
}

void UnitWindow::use(size_t unit) {
  ESP_CHECK(order_, "unit {} is used outside a pass. Call begin_pass first", parameters_.units()[unit].name);
  stop_clock();
  current_ = unit;
  record_use(unit);
  prefetch_next();
  if (!options_.keep_gathered) drop_unless_needed();
  fetch(unit);
  for (size_t i = 0; i < num_to_fetch_; ++i) {
    const int beyond = static_cast<int>(static_cast<int64_t>(i) - options_.ahead) + 1;
    if (beyond <= 0) {
      fetch(upcoming_[i]);
    } else if (states_[upcoming_[i]] == UnitState::shards) {
      gather_.hint(upcoming_[i], beyond);
    }
  }
  if (states_[unit] == UnitState::gathering) {
    gather_.finish(unit, whole_[unit]);
    parameters_.bind_values(parameters_.units()[unit], whole_[unit]);
    states_[unit] = UnitState::gathered;
  }
  began_ns_ = now_ns();
}

void UnitWindow::fetch(size_t unit) {
  if (states_[unit] != UnitState::shards) return;
  const auto& of = parameters_.units()[unit];
  whole_[unit] = tensor::empty(context_, {of.count}, options_.storage, device::MemoryCategory::buffer);
  gather_.start(unit, whole_[unit]);
  states_[unit] = UnitState::gathering;
  ++num_gathers_;
}

void UnitWindow::drop_unless_needed() {
  for (size_t unit = 0; unit < states_.size(); ++unit)
    if (unit != current_ && states_[unit] == UnitState::gathered && !needed_soon(unit)) drop(unit);
}

void UnitWindow::allocate(size_t unit) {
  const auto& of = parameters_.units()[unit];
  whole_[unit] = tensor::empty(context_, {of.count}, options_.storage, device::MemoryCategory::buffer);
  parameters_.bind_values(parameters_.units()[unit], whole_[unit]);
  states_[unit] = UnitState::gathered;
}

void UnitWindow::drop(size_t unit) {
  // waits for a gather in flight, which would otherwise write to freed memory
  if (states_[unit] == UnitState::gathering) gather_.finish(unit, whole_[unit]);
  parameters_.bind_values(parameters_.units()[unit], {});
  whole_[unit] = {};
  states_[unit] = UnitState::shards;
}

void UnitWindow::drop_all() {
  for (size_t unit = 0; unit < states_.size(); ++unit)
    if (states_[unit] != UnitState::shards) drop(unit);
}

}  // namespace esp::sync
