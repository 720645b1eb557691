#include "esp/nn/parameter.h"

#include "esp/autograd/functions/weights.h"
#include "esp/base/error.h"
#include "esp/base/table.h"
#include "esp/device/is_cuda.h"
#include "esp/kernel/elementwise.h"

namespace esp::nn {
namespace {

// FNV-1a hash of the parameter name. It selects the random stream of the parameter's initial values.
uint64_t purpose_of(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

// The index ranges of the sharded dimension that this rank holds, one per section.
std::vector<IndexRange> sections_of(const Shard& share, const ShardSpec& cut, int64_t extent, const std::string& name) {
  std::vector<IndexRange> parts;
  int64_t at = 0;
  for (int64_t section : cut.sections.empty() ? std::vector<int64_t>{extent} : cut.sections) {
    ESP_CHECK(section % cut.grain == 0, "{}: got a section of {} elements; expected a multiple of the grain, {}", name,
              section, cut.grain);
    const IndexRange grains = share.of(section / cut.grain);
    parts.push_back({at + grains.begin * cut.grain, at + grains.end * cut.grain});
    at += section;
  }
  ESP_CHECK(at == extent, "{}: the sections have {} elements in total; expected {}, the size of the sharded dimension",
            name, at, extent);
  return parts;
}

// Calls f(first, at, count) for every contiguous range of local elements that is also contiguous in the whole
// parameter. `first`: start of the range in the whole parameter; `at`: its start in local memory.
template <typename F>
void for_each_contiguous_range(const Parameter& p, F&& f) {
  if (p.cut_dim < 0) return f(0, 0, p.count());
  int64_t outer = 1, inner = 1;
  for (int i = 0; i < p.shape.rank(); ++i) (i < p.cut_dim ? outer : inner) *= i == p.cut_dim ? 1 : p.shape.dim(i);
  const int64_t whole = p.global_shape.dim(p.cut_dim);
  int64_t at = 0;
  for (int64_t o = 0; o < outer; ++o)
    for (const IndexRange& section : p.sections) {
      f((o * whole + section.begin) * inner, at, section.count() * inner);
      at += section.count() * inner;
    }
}

}  // namespace

void ParameterList::begin_unit(std::string name) {
  whole_tokens_ = false;
  units_.push_back({std::move(name), {}, count(), 0, {}, {}});
}

Parameter& ParameterList::add(std::string name, const tensor::Shape& shape, Init init, bool decay,
                              const ShardSpec& cut) {
  ESP_CHECK(!find_or_null(name), "parameter {}: this name is already in the list", name);
  if (units_.empty()) begin_unit("model");
  Unit& unit = units_.back();
  Parameter& parameter = parameters_.emplace_back();
  parameter.name = std::move(name);
  by_name_.emplace(parameter.name, &parameter);
  parameter.index = static_cast<int>(parameters_.size()) - 1;
  parameter.shape = parameter.global_shape = shape;
  if (cut.dim >= 0 && !shares_.tensor.whole()) {
    parameter.cut_dim = cut.dim;
    parameter.sections = sections_of(shares_.tensor, cut, shape.dim(cut.dim), parameter.name);
    int64_t held = 0;
    for (const IndexRange& section : parameter.sections) held += section.count();
    std::vector<int64_t> dims(shape.dims().begin(), shape.dims().end());
    dims[static_cast<size_t>(cut.dim)] = held;
    parameter.shape = tensor::Shape(dims);
  } else {
    parameter.counted = shares_.tensor.index == 0;
    parameter.partial = !whole_tokens_;
  }
  parameter.init = init;
  parameter.decay = decay;
  parameter.unit = static_cast<int>(units_.size()) - 1;
  parameter.offset = unit.count;
  unit.count += parameter.count();
  unit.parameters.push_back(&parameter);
  return parameter;
}

void ParameterList::materialize(const tensor::Context& context, DType dtype, bool gradients) {
  const tensor::Tensor values = tensor::empty(context, {count()}, dtype, device::MemoryCategory::parameter);
  const tensor::Tensor grads =
      gradients ? tensor::zeros(context, {count()}, dtype, device::MemoryCategory::gradient) : tensor::Tensor();
  for (Unit& unit : units_) {
    bind_values(unit, values.slice(unit.first, unit.first + unit.count));
    if (!gradients) continue;
    bind_gradients(unit, grads.slice(unit.first, unit.first + unit.count));
    for (Parameter* p : unit.parameters) p->weight.trained = true;
  }
}

void ParameterList::bind_values(Unit& unit, tensor::Tensor flat) {
  for (Parameter* p : unit.parameters)
    p->weight.value =
        flat.defined() ? flat.slice(p->offset, p->offset + p->count()).reshape(p->shape) : tensor::Tensor();
  unit.values = std::move(flat);
}

void ParameterList::bind_gradients(Unit& unit, tensor::Tensor flat) {
  for (Parameter* p : unit.parameters)
    p->weight.grad =
        flat.defined() ? flat.slice(p->offset, p->offset + p->count()).reshape(p->shape) : tensor::Tensor();
  unit.grads = std::move(flat);
}

void ParameterList::initialise(uint64_t seed, const device::Stream& stream) {
  for (Unit& unit : units_) initialise(unit, seed, stream);
}

void ParameterList::initialise(Unit& unit, uint64_t seed, const device::Stream& stream) {
  for (Parameter* each : unit.parameters) {
    Parameter& p = *each;
    std::byte* const data = p.weight.value.as<std::byte>();
    const DType type = p.weight.value.dtype();
    switch (p.init.kind) {
      case Init::Distribution::zero:
        kernel::fill(data, 0, p.count(), type, stream);
        break;
      case Init::Distribution::one:
        kernel::fill(data, 1, p.count(), type, stream);
        break;
      case Init::Distribution::normal:
        for_each_contiguous_range(p, [&](int64_t first, int64_t at, int64_t count) {
          kernel::fill_normal(data + static_cast<size_t>(at) * size_of(type), 0, p.init.scale, seed, purpose_of(p.name),
                              first, count, type, stream);
        });
        break;
      case Init::Distribution::uniform:
        for_each_contiguous_range(p, [&](int64_t first, int64_t at, int64_t count) {
          kernel::fill_uniform(data + static_cast<size_t>(at) * size_of(type), -p.init.scale, p.init.scale, seed,
                               purpose_of(p.name), first, count, type, stream);
        });
        break;
    }
  }
}

void ParameterList::zero_gradients(const device::Stream& stream) {
  for (Unit& unit : units_)
    if (unit.grads.defined()) kernel::fill(unit.grads.data(), 0, unit.count, unit.grads.dtype(), stream);
  for (Parameter& p : parameters_) p.weight.stale = false;
}

void ParameterList::mark_gradients_stale(const device::Stream& stream) {
  for (Parameter& p : parameters_) {
    if (!p.weight.grad.defined()) continue;
    p.weight.stale = true;
    // Zeroes the gradients of vectors on a CPU, because the CPU kernels accumulate into them. GPU kernels overwrite
    // stale vectors; zeroing each vector would cost a kernel launch.
    if (p.shape.rank() < 2 && !device::is_cuda(stream)) autograd::clear_if_stale(p.weight, stream);
  }
}

void ParameterList::clear_stale_gradients(const device::Stream& stream) {
  for (Parameter& p : parameters_)
    if (p.weight.grad.defined()) autograd::clear_if_stale(p.weight, stream);
}

int64_t ParameterList::count() const {
  int64_t sum = 0;
  for (const Unit& unit : units_) sum += unit.count;
  return sum;
}

Parameter* ParameterList::find_or_null(std::string_view name) {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

Parameter& ParameterList::find(std::string_view name) {
  if (Parameter* p = find_or_null(name)) return *p;
  unknown_name("parameter", name, names_of(parameters_));
}

}  // namespace esp::nn
