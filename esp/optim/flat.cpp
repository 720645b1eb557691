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

std::vector<Owned> everything(const nn::ParameterList& parameters) {
  std::vector<Owned> all;
  for (const auto& unit : parameters.units())
    all.push_back({{static_cast<int>(all.size()), 0, unit.count}, unit.values, unit.grads});
  return all;
}

std::vector<DecayRun> decay_runs(const nn::ParameterList& parameters, const Range& range) {
  std::vector<DecayRun> runs;
  for (const nn::Parameter* p : parameters.units()[static_cast<size_t>(range.unit)].parameters) {
    const int64_t begin = std::max(range.begin, p->offset), end = std::min(range.end, p->offset + p->count());
    if (begin >= end) continue;
    if (!runs.empty() && runs.back().decay == p->decay) {
      runs.back().end = end;
    } else {
      runs.push_back({begin, end, p->decay});
    }
  }
  return runs;
}

FlatOptimizer::FlatOptimizer(std::unique_ptr<Rule> rule, const nn::ParameterList& parameters,
                             const tensor::Context& context, std::vector<Owned> owned)
    : rule_(std::move(rule)), context_(context) {
  for (Owned& one : owned) {
    const int64_t count = one.range.end - one.range.begin;
    ESP_CHECK(one.values.count() == count && one.grads.count() == count, "[{}, {}) of unit {}", one.range.begin,
              one.range.end, one.range.unit);
    const DType type = tensor::accumulation_type(one.values.dtype());
    const size_t first = states_.size();
    if (needs_master(one.values.dtype()))
      states_.push_back(
          {"master", one.range, tensor::empty(context, {count}, type, device::MemoryCategory::optimizer)});
    for (std::string_view slot : rule_->slots())
      states_.push_back({slot, one.range, tensor::zeros(context, {count}, type, device::MemoryCategory::optimizer)});
    std::vector<DecayRun> runs = decay_runs(parameters, one.range);
    parts_.push_back({std::move(one), std::move(runs), first, states_.size() - first});
  }
  refresh_master();
}

void* FlatOptimizer::state_at(const Part& part, std::string_view slot, int64_t at) {
  for (size_t i = part.first_state; i < part.first_state + part.num_states; ++i)
    if (states_[i].slot == slot) return element(states_[i].values, at);
  return nullptr;
}

void FlatOptimizer::step(double lr, double grad_scale) {
  ++num_steps_;
  buffers_.clear();
  steps_.clear();
  for (const Part& part : parts_) {
    const bool mixed = needs_master(part.owned.values.dtype());
    for (const DecayRun& run : part.runs) {
      const int64_t at = run.begin - part.owned.range.begin;
      void* values = element(part.owned.values, at);
      kernel::StepBuffers buffers;
      buffers.master = mixed ? state_at(part, "master", at) : values;
      buffers.weights = mixed ? values : nullptr;
      buffers.grad = element(part.owned.grads, at);
      buffers.m = state_at(part, "m", at);
      buffers.v = state_at(part, "v", at);
      buffers.count = run.end - run.begin;
      buffers.grad_type = part.owned.grads.dtype();
      buffers_.push_back(buffers);
      steps_.push_back({lr, grad_scale, num_steps_, run.decay});
    }
  }
  rule_->update_all(buffers_, steps_, context_.stream);
}

void FlatOptimizer::refresh_master() {
  for (const Part& part : parts_)
    if (void* master = state_at(part, "master", 0))
      kernel::cast(master, tensor::accumulation_type(part.owned.values.dtype()), part.owned.values.data(),
                   part.owned.values.dtype(), part.owned.values.count(), context_.stream);
}

}  // namespace esp::optim
