#include "esp/sync/zero/unit_window.h"

#include <algorithm>

namespace esp::sync {

using tensor::Tensor;

UnitWindow::UnitWindow(nn::ParameterList& parameters, const tensor::Context& context, UnitGather& gather,
                       const Options& options)
    : parameters_(parameters),
      context_(context),
      gather_(gather),
      options_(options),
      at_(parameters.units().size(), At::shards),
      whole_(parameters.units().size()) {
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
}

void UnitWindow::begin_backward() {
  if (!options_.keep) drop_all();
  current_ = kNone;
}

void UnitWindow::end_pass() {
  if (order_ && known_ && next_ < order_->size()) order_->resize(next_);  // the walk was shorter this time
  drop_all();
  current_ = kNone;
  order_ = nullptr;
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

bool UnitWindow::wanted_soon(size_t unit) const {
  if (!known_) return false;
  const size_t end = std::min(order_->size(), next_ + static_cast<size_t>(options_.ahead));
  return std::find(order_->begin() + static_cast<std::ptrdiff_t>(next_),
                   order_->begin() + static_cast<std::ptrdiff_t>(end), unit) !=
         order_->begin() + static_cast<std::ptrdiff_t>(end);
}

void UnitWindow::use(size_t unit) {
  ESP_CHECK(order_, "unit {} is used outside a pass", parameters_.units()[unit].name);
  current_ = unit;
  note(unit);
  if (!options_.keep) drop_unless_wanted();
  fetch(unit);
  if (known_)
    for (size_t i = next_; i < std::min(order_->size(), next_ + static_cast<size_t>(options_.ahead)); ++i)
      fetch((*order_)[i]);
  if (at_[unit] == At::coming) {
    gather_.finish(unit, whole_[unit]);
    parameters_.place_values(parameters_.units()[unit], whole_[unit]);
    at_[unit] = At::here;
  }
}

void UnitWindow::fetch(size_t unit) {
  if (at_[unit] != At::shards) return;
  const auto& of = parameters_.units()[unit];
  whole_[unit] = tensor::empty(context_, {of.count}, options_.storage, device::MemoryCategory::buffer);
  gather_.start(unit, whole_[unit]);
  at_[unit] = At::coming;
  ++num_gathers_;
}

void UnitWindow::drop_unless_wanted() {
  for (size_t unit = 0; unit < at_.size(); ++unit)
    if (unit != current_ && at_[unit] == At::here && !wanted_soon(unit)) drop(unit);
}

void UnitWindow::open(size_t unit) {
  const auto& of = parameters_.units()[unit];
  whole_[unit] = tensor::empty(context_, {of.count}, options_.storage, device::MemoryCategory::buffer);
  parameters_.place_values(parameters_.units()[unit], whole_[unit]);
  at_[unit] = At::here;
}

void UnitWindow::drop(size_t unit) {
  if (at_[unit] == At::coming) gather_.finish(unit, whole_[unit]);  // nothing may write to memory given back
  parameters_.place_values(parameters_.units()[unit], {});
  whole_[unit] = {};
  at_[unit] = At::shards;
}

void UnitWindow::drop_all() {
  for (size_t unit = 0; unit < at_.size(); ++unit)
    if (at_[unit] != At::shards) drop(unit);
}

}  // namespace esp::sync
