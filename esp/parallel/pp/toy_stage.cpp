#include "esp/parallel/pp/toy_stage.h"

#include "esp/autograd/functions/linear.h"
#include "esp/autograd/functions/pointwise.h"
#include "esp/base/check.h"
#include "esp/kernel/elementwise.h"

namespace esp::parallel {
namespace {

using autograd::Variable;
using device::MemoryCategory;
using tensor::Tensor;

constexpr uint64_t kDataSeed = 1000;

Tensor random(const tensor::Context& context, const tensor::Shape& shape, uint64_t seed, DType dtype) {
  Tensor x = tensor::empty(context, shape, dtype, MemoryCategory::other);
  kernel::fill_normal(x.data(), 0, 0.3, seed, 0, 0, x.count(), dtype, context.stream);
  return x;
}

}  // namespace

ToyStage::ToyStage(const tensor::Context& context, const ToyOptions& options, const ScheduleShape& shape, int stage,
                   std::vector<int> cuts)
    : context_(context), options_(options), shape_(shape), stage_(stage) {
  ESP_CHECK(cuts.size() == static_cast<size_t>(shape.virtual_stages()) + 1 && cuts.back() == options.units);
  by_chunk_.resize(static_cast<size_t>(shape.chunks));
  units_.resize(static_cast<size_t>(shape.chunks));
  for (int chunk = 0; chunk < shape.chunks; ++chunk) {
    const auto virtual_stage = static_cast<size_t>(chunk * shape.stages + stage);
    if (has_first(chunk) && options.memory) memory_weight_ = &add(chunk, -1, 0, {options.width, options.width}).weight;
    for (int unit = cuts[virtual_stage]; unit < cuts[virtual_stage + 1]; ++unit) {
      const tensor::Shape shapes[] = {
          {options.width, options.hidden}, {options.hidden}, {options.hidden, options.width}, {options.width}};
      for (int part = 0; part < 4; ++part)
        units_[static_cast<size_t>(chunk)].push_back(&add(chunk, unit, part, shapes[part]).weight);
    }
    if (has_last(chunk)) classifier_ = &add(chunk, options.units, 0, {options.classes, options.width}).weight;
  }
  for (int i = 0; i < shape.micro_batches; ++i) {
    const auto seed = kDataSeed + static_cast<uint64_t>(i);
    inputs_.push_back(random(context, {rows_of(i), options.width}, seed, options.dtype));
    Tensor& target = targets_.emplace_back(tensor::empty(context, {rows_of(i)}, DType::i32, MemoryCategory::other));
    for (int64_t row = 0; row < rows_of(i); ++row)
      target.as<int32_t>()[row] = static_cast<int32_t>((row + 2 * i) % options.classes);
  }
}

ToyStage::ToyWeight& ToyStage::add(int chunk, int unit, int part, const tensor::Shape& shape) {
  ToyWeight& weight = all_.emplace_back();
  weight.unit = unit;
  weight.part = part;
  const auto seed = static_cast<uint64_t>(10 * (unit + 2) + part);
  weight.weight.value = random(context_, shape, seed, options_.dtype);
  weight.weight.grad = tensor::zeros(context_, shape, options_.dtype, MemoryCategory::gradient);
  weight.weight.trained = true;
  weight.weight.on_ready = [&weight] { ++weight.num_ready; };
  by_chunk_[static_cast<size_t>(chunk)].push_back(&weight.weight);
  return weight;
}

StageTensorShapes ToyStage::input_shape(int, int micro_batch) const {
  StageTensorShapes shape{{rows_of(micro_batch), options_.width}, {}, options_.dtype};
  if (options_.memory) shape.memory = shape.x;
  return shape;
}

StageTensorShapes ToyStage::output_shape(int chunk, int micro_batch) const {
  return input_shape(chunk, micro_batch);
}

PipelineStage::ForwardResult ToyStage::forward(int chunk, int micro_batch, autograd::Tape& tape,
                                               const StageTensors& input) {
  const auto i = static_cast<size_t>(micro_batch);
  ForwardResult output;
  output.carried = input;
  auto& [x, memory] = output.carried;
  if (has_first(chunk)) {
    x = Variable(inputs_[i]);
    if (memory_weight_) memory = autograd::linear(tape, x, *memory_weight_, nullptr);
  }
  const auto& weights = units_[static_cast<size_t>(chunk)];
  for (size_t w = 0; w < weights.size(); w += 4) {
    if (options_.memory) x = autograd::add(tape, x, memory);
    x = autograd::mlp(tape, x, *weights[w], weights[w + 1], kernel::Activation::gelu, *weights[w + 2], weights[w + 3]);
  }
  if (has_last(chunk)) {
    const double scale = 1.0 / static_cast<double>(options_.rows * shape_.micro_batches);
    output.loss = autograd::linear_cross_entropy(tape, x, *classifier_, nullptr, targets_[i], scale);
    loss_ += scale * tensor::item(output.loss.total.value());
  }
  return output;
}

std::span<autograd::Weight* const> ToyStage::weights(int chunk) const {
  return by_chunk_[static_cast<size_t>(chunk)];
}

void ToyStage::begin_step() {
  loss_ = 0;
  for (ToyWeight& weight : all_) {
    weight.weight.stale = true;
    weight.num_ready = 0;
  }
}

}  // namespace esp::parallel
