#include "esp/model/blocks/stack.h"

#include "esp/autograd/recompute.h"

namespace esp::model {

using autograd::Tape;
using autograd::Variable;

std::string BlockStack::begin(nn::ParameterList& list, int64_t index) {
  std::string name = fmt::format("blocks.{}", index);
  list.begin_unit(name);
  return name;
}

void BlockStack::add(nn::ParameterList& list, const std::string& name, const nn::BlockOptions& options,
                     nn::ParameterList* experts) {
  if (experts && options.moe.num_experts > 0) experts->begin_unit(name);
  blocks_.emplace_back(std::in_place, list, name, options, experts);
}

const nn::Block& BlockStack::operator[](int i) const {
  ESP_CHECK(blocks_[static_cast<size_t>(i)], "block {} is on another stage", i);
  return *blocks_[static_cast<size_t>(i)];
}

Variable BlockStack::run(int first, int last, nn::ForwardContext& pass, const Variable& x,
                         const nn::BlockInputs& inputs) const {
  const int64_t limit = pass.recompute_layers;
  // end (exclusive) of the range of recomputed blocks
  const int until = limit < 0 || limit > last - first ? last : first + static_cast<int>(limit);
  nn::ForwardContext kept = pass;
  kept.recompute = nn::RecomputeMode::none;
  Variable y = x;
  int i = first;
  if (pass.recompute == nn::RecomputeMode::full)
    for (; i < until; ++i) y = recompute_block((*this)[i], kept, y, inputs);
  nn::ResidualStream stream{y, {}};
  for (; i < last; ++i) stream = (*this)[i](i < until ? pass : kept, stream, inputs);
  return nn::close(pass, stream);
}

// Activation checkpointing: runs a block without keeping its activations; backward runs the block again. Keeps only x
// and the encoder output, which all blocks share. `again` is the context of both runs; it must have recomputation
// switched off.
Variable BlockStack::recompute_block(const nn::Block& block, const nn::ForwardContext& again, const Variable& x,
                                     const nn::BlockInputs& inputs) const {
  if (!inputs.memory.value().defined())
    return autograd::recompute(*again.tape, x, [&block, again, inputs](Tape& tape, const Variable& in) {
      nn::ForwardContext inner = again;
      inner.tape = &tape;
      return nn::close(inner, block(inner, {in, {}}, inputs));
    });
  nn::BlockInputs lengths = inputs;
  lengths.memory = {};  // passed as a function input, so that it gets a gradient
  return autograd::recompute(*again.tape, std::array<Variable, 2>{x, inputs.memory},
                             [&block, again, lengths](Tape& tape, const std::array<Variable, 2>& in) {
                               nn::ForwardContext inner = again;
                               inner.tape = &tape;
                               nn::BlockInputs all = lengths;
                               all.memory = in[1];
                               return nn::close(inner, block(inner, {in[0], {}}, all));
                             });
}

}  // namespace esp::model
