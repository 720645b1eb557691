// BlockStack: the transformer blocks of a model. It runs them with the activation checkpointing (recomputation) that
// the ForwardContext selects.
#pragma once

#include <deque>
#include <optional>

#include "esp/model/model.h"
#include "esp/nn/layers/block.h"

namespace esp::model {

class BlockStack {
 public:
  // Starts the parameter unit "blocks.<n>" for the next block. Parameters added between this call and `add` belong to
  // the unit as well.
  static std::string begin(nn::ParameterList& list, int64_t index);
  // Adds a block. Its expert parameters go into the list `experts`, or into `list` if `experts` is null.
  void add(nn::ParameterList& list, const std::string& name, const nn::BlockOptions& options,
           nn::ParameterList* experts = nullptr);
  void skip() { blocks_.emplace_back(); }  // instead of `add`, for a block on another stage

  int size() const { return static_cast<int>(blocks_.size()); }
  const nn::Block& operator[](int i) const;

  // Runs x through blocks [first, last). All blocks get the same `inputs`.
  autograd::Variable run(int first, int last, nn::ForwardContext& pass, const autograd::Variable& x,
                         const nn::BlockInputs& inputs) const;

 private:
  autograd::Variable recompute_block(const nn::Block& block, const nn::ForwardContext& again,
                                     const autograd::Variable& x, const nn::BlockInputs& inputs) const;

  std::deque<std::optional<nn::Block>> blocks_;  // empty if on another stage
};

}  // namespace esp::model
