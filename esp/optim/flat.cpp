#include "esp/optim/flat.h"

#include <algorithm>

#include "esp/kernel/elementwise.h"

namespace esp::optim {
namespace {

std::byte* element(const tensor::Tensor& flat, int64_t at) {
  return flat.as<std::byte>() + static_cast<size_t>(at) * size_of(flat.dtype());
}

bool needs_master(DType type) {
  return type != tensor::accumulation_type(type);
}

}  // namespace

FlatOptimizer::FlatOptimizer(const OptimizerOptions& options, nn::ParameterList& parameters,
                             const tensor::Context& context, std::vector<Range> ranges,
                             std::span<const std::string_view> slots)
    : options_(options), context_(context), parameters_(parameters), ranges_(std::move(ranges)) {
  if (ranges_.empty())
    for (size_t unit = 0; unit < parameters.units().size(); ++unit)
      ranges_.push_back({static_cast<int>(unit), 0, parameters.units()[unit].count});
  for (size_t i = 0; i < ranges_.size(); ++i) {
    const Range& range = ranges_[i];
    const nn::ParameterList::Unit& unit = parameters.units()[static_cast<size_t>(range.unit)];
    ESP_CHECK(unit.grads.defined() && 0 <= range.begin && range.end <= unit.count, "[{}, {}) of unit {}", range.begin,
              range.end, unit.name);
    const DType type = tensor::accumulation_type(unit.values.dtype());
    const tensor::Shape shape{range.end - range.begin};
    if (needs_master(unit.values.dtype()))
      states_.push_back({"master", range, tensor::empty(context, shape, type, device::MemoryCategory::optimizer)});
    for (std::string_view slot : slots)
      states_.push_back({slot, range, tensor::zeros(context, shape, type, device::MemoryCategory::optimizer)});
    add_runs(range, i);
  }
  refresh_master();
}

void FlatOptimizer::add_runs(const Range& range, size_t index) {
  const auto& unit = parameters_.units()[static_cast<size_t>(range.unit)];
  for (const nn::Parameter* p : unit.parameters) {
    const int64_t begin = std::max(range.begin, p->offset), end = std::min(range.end, p->offset + p->count());
    if (begin >= end) continue;
    Run* last = runs_.empty() ? nullptr : &runs_.back();
    if (last && last->range == index && last->decay == p->decay && last->end == begin) {
      last->end = end;
    } else {
      runs_.push_back({range.unit, begin, end, p->decay, index});
    }
  }
}

void* FlatOptimizer::state_at(std::string_view slot, const Run& run) {
  for (State& state : states_)
    if (state.slot == slot && state.range == ranges_[run.range])
      return element(state.values, run.begin - state.range.begin);
  return nullptr;
}

void FlatOptimizer::step(double lr, double grad_scale) {
  ++num_steps_;
  for (const Run& run : runs_) {
    const auto& unit = parameters_.units()[static_cast<size_t>(run.unit)];
    kernel::StepBuffers buffers;
    const bool mixed = needs_master(unit.values.dtype());
    void* values = element(unit.values, run.begin);
    buffers.master = mixed ? state_at("master", run) : values;
    buffers.weights = mixed ? values : nullptr;
    buffers.grad = element(unit.grads, run.begin);
    buffers.m = state_at("m", run);
    buffers.v = state_at("v", run);
    buffers.count = run.end - run.begin;
    buffers.grad_type = unit.grads.dtype();
    update(buffers, lr, run.decay ? options_.weight_decay : 0, grad_scale, num_steps_);
  }
}

void FlatOptimizer::refresh_master() {
  for (State& state : states_) {
    if (state.slot != "master") continue;
    const auto& unit = parameters_.units()[static_cast<size_t>(state.range.unit)];
    kernel::cast(state.values.data(), state.values.dtype(), element(unit.values, state.range.begin),
                 unit.values.dtype(), state.values.count(), context_.stream);
  }
}

}  // namespace esp::optim
