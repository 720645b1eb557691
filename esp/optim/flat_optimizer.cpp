#include "esp/optim/flat_optimizer.h"

#include <algorithm>

#include "esp/device/gpu.h"
#include "esp/kernel/elementwise.h"
#include "esp/kernel/split_master.h"

namespace esp::optim {
namespace {

std::byte* element(const tensor::Tensor& flat, int64_t at) {
  return flat.as<std::byte>() + static_cast<size_t>(at) * size_of(flat.dtype());
}

bool needs_master(DType type) {
  return type != tensor::accumulation_type(type);
}

}  // namespace

std::vector<OptimizerShard> all_units(const nn::ParameterList& parameters) {
  std::vector<OptimizerShard> all;
  for (const auto& unit : parameters.units())
    all.push_back({{static_cast<int>(all.size()), 0, unit.count}, unit.values, unit.grads});
  return all;
}

std::vector<DecayRange> decay_ranges(const nn::ParameterList& parameters, const UnitRange& range) {
  std::vector<DecayRange> ranges;
  for (const nn::Parameter* p : parameters.units()[static_cast<size_t>(range.unit)].parameters) {
    const int64_t begin = std::max(range.begin, p->offset), end = std::min(range.end, p->offset + p->count());
    if (begin >= end) continue;
    if (!ranges.empty() && ranges.back().decay == p->decay) {
      ranges.back().end = end;
    } else {
      ranges.push_back({begin, end, p->decay});
    }
  }
  return ranges;
}

FlatOptimizer::FlatOptimizer(std::unique_ptr<UpdateRule> rule, const nn::ParameterList& parameters,
                             const tensor::Context& context, std::vector<OptimizerShard> owned, bool split_master)
    : rule_(std::move(rule)), context_(context) {
  for (OptimizerShard& one : owned) {
    const int64_t count = one.range.end - one.range.begin;
    ESP_CHECK(one.values.count() == count && one.grads.count() == count,
              "optimizer shard [{}, {}) of unit {}: got {} values, {} gradients; expected {} of each", one.range.begin,
              one.range.end, one.range.unit, one.values.count(), one.grads.count(), count);
    const DType type = tensor::accumulation_type(one.values.dtype());
    const size_t first = states_.size();
    if (split_master && one.values.dtype() == DType::bf16)
      states_.push_back(split_master_of(one));
    else if (needs_master(one.values.dtype()))
      states_.push_back(
          {"master", one.range, tensor::empty(context, {count}, type, device::MemoryCategory::optimizer)});
    for (std::string_view slot : rule_->slots())
      states_.push_back({slot, one.range, tensor::zeros(context, {count}, type, device::MemoryCategory::optimizer)});
    std::vector<DecayRange> ranges = decay_ranges(parameters, one.range);
    const bool split = states_.size() > first && states_[first].raw.defined();
    parts_.push_back({std::move(one), std::move(ranges), first, states_.size() - first, split});
  }
  refresh_master();
}

void* FlatOptimizer::state_at(const FlatShard& part, std::string_view slot, int64_t at) {
  for (size_t i = part.first_state; i < part.first_state + part.num_states; ++i)
    if (states_[i].slot == slot) return element(states_[i].memory(), at);
  return nullptr;
}

// Returns the state "master" for bf16 values with a split master copy. `raw` stores the lower 16 bits of the fp32
// values; `read` and `write` convert from and to fp32 on the host.
OptimizerState FlatOptimizer::split_master_of(const OptimizerShard& owned) const {
  const int64_t count = owned.values.count();
  OptimizerState state{"master", owned.range, tensor::Tensor::borrow(nullptr, {count}, DType::f32)};
  state.raw = tensor::empty(context_, {count}, DType::i16, device::MemoryCategory::optimizer);
  const device::Stream host = device::host_side(context_.stream);
  state.read = [high = owned.values, low = state.raw, host](int64_t first, const tensor::Tensor& to) {
    std::vector<uint16_t> upper(static_cast<size_t>(to.count())), lower(upper.size());
    device::transfer(upper.data(), element(high, first), upper.size() * sizeof(uint16_t));
    device::transfer(lower.data(), element(low, first), lower.size() * sizeof(uint16_t));
    kernel::join_master_weights(to.as<float>(), upper.data(), lower.data(), to.count(), host);
  };
  state.write = [high = owned.values, low = state.raw, host](const tensor::Tensor& from) {
    std::vector<uint16_t> half(static_cast<size_t>(from.count()));
    kernel::split_master_weights(half.data(), from.as<const float>(), from.count(), host);
    device::transfer(low.data(), half.data(), low.bytes());
    // The parameters' bf16 values must equal the rounded master copy, so they are written too.
    kernel::cast(half.data(), DType::bf16, from.data(), DType::f32, from.count(), host);
    device::transfer(high.data(), half.data(), high.bytes());
  };
  return state;
}

void FlatOptimizer::step(double lr, double grad_scale) {
  ++num_steps_;
  buffers_.clear();
  steps_.clear();
  for (const FlatShard& part : parts_) {
    const bool mixed = needs_master(part.owned.values.dtype());
    for (const DecayRange& range : part.ranges) {
      const int64_t at = range.begin - part.owned.range.begin;
      void* values = element(part.owned.values, at);
      kernel::StepBuffers buffers;
      void* const master = mixed ? state_at(part, "master", at) : values;
      if (part.split)
        buffers.lower = static_cast<uint16_t*>(master);
      else
        buffers.master = master;
      buffers.weights = mixed ? values : nullptr;
      buffers.grad = element(part.owned.grads, at);
      buffers.m = state_at(part, "m", at);
      buffers.v = state_at(part, "v", at);
      buffers.count = range.end - range.begin;
      buffers.grad_type = part.owned.grads.dtype();
      buffers_.push_back(buffers);
      steps_.push_back({lr, grad_scale, num_steps_, range.decay});
    }
  }
  rule_->update_all(buffers_, steps_, context_.stream);
}

void FlatOptimizer::refresh_master() {
  for (const FlatShard& part : parts_)
    // A bf16 value has no lower bits, so the stored lower half of the master copy becomes 0.
    if (void* master = state_at(part, "master", 0); master && part.split)
      kernel::fill(master, 0, part.owned.values.count(), DType::bf16, context_.stream);
    else if (master)
      kernel::cast(master, tensor::accumulation_type(part.owned.values.dtype()), part.owned.values.data(),
                   part.owned.values.dtype(), part.owned.values.count(), context_.stream);
}

}  // namespace esp::optim
