// The stack of transformer blocks, run with the activation recomputation of the pass.
#pragma once

#include <deque>
#include <optional>

#include "esp/model/model.h"
#include "esp/nn/layers/block.h"

namespace esp::model {

class Stack {
 public:
  // Starts the unit "blocks.<n>" for the next block; parameters added before `add` belong to it.
  static std::string begin(nn::ParameterList& list, int64_t index);
  // Experts of the block go into `experts`, or into `list` if that is null.
  void add(nn::ParameterList& list, const std::string& name, const nn::BlockOptions& options,
           nn::ParameterList* experts = nullptr);
  void skip() { blocks_.emplace_back(); }  // the next block is on another stage

  int size() const { return static_cast<int>(blocks_.size()); }
  const nn::Block& operator[](int i) const;

  // Runs x through blocks [first, last). All blocks get the same inputs.
  autograd::Variable run(int first, int last, nn::ForwardContext& pass, const autograd::Variable& x,
                         const nn::BlockInputs& inputs) const;

 private:
  autograd::Variable run_again(const nn::Block& block, const nn::ForwardContext& again, const autograd::Variable& x,
                               const nn::BlockInputs& inputs) const;

  std::deque<std::optional<nn::Block>> blocks_;  // empty if on another stage
};

}  // namespace esp::model
