// The row of blocks of a model: a run of them, with the recomputation the pass asks for.
#pragma once

#include <deque>
#include <optional>

#include "esp/model/model.h"
#include "esp/nn/layers/block.h"

namespace esp::model {

class Stack {
 public:
  // Begins the unit "blocks.<n>" for the next block; parameters added before `add` belong to it too.
  static std::string begin(nn::ParameterList& list, int64_t index);
  // Experts, where the block has any, go into `experts`, or into `list` too where that is null.
  void add(nn::ParameterList& list, const std::string& name, const nn::BlockOptions& options,
           nn::ParameterList* experts = nullptr);
  void skip() { blocks_.emplace_back(); }  // the next block is held elsewhere

  int size() const { return static_cast<int>(blocks_.size()); }
  const nn::Block& operator[](int i) const;

  // x through blocks [first, last). Inputs are the same for all of them.
  autograd::Variable run(int first, int last, nn::Pass& pass, const autograd::Variable& x,
                         const nn::BlockInputs& inputs) const;

 private:
  autograd::Variable run_again(const nn::Block& block, const nn::Pass& again, const autograd::Variable& x,
                               const nn::BlockInputs& inputs) const;

  std::deque<std::optional<nn::Block>> blocks_;  // empty where they are held elsewhere
};

}  // namespace esp::model
