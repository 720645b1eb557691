// Output projection and its loss: logits = x·Wᵀ + b with W [classes, in]. W has the shape of an embedding table, so the
// two can be tied (Press & Wolf 2017). If the classes are the vocabulary, W is sharded by rows over the tensor axis.
#pragma once

#include <string>

#include "esp/autograd/functions/cross_entropy.h"
#include "esp/nn/forward_context.h"
#include "esp/nn/parameter.h"

namespace esp::nn {

class Head {
 public:
  // `tied`: the embedding table to use as W; null: creates `<name>.weight`.
  Head(ParameterList& list, const std::string& name, int64_t in, int64_t classes, bool bias, Init init,
       Parameter* tied = nullptr, bool divided = false);

  autograd::Loss loss(ForwardContext& pass, const autograd::Variable& x, const tensor::Tensor& targets,
                      double scale) const;
  tensor::Tensor logits(ForwardContext& pass,
                        const tensor::Tensor& x) const;  // [.., in] → [.., classes]; nothing is recorded on the tape

 private:
  Parameter& weight_;
  Parameter* bias_ = nullptr;
};

}  // namespace esp::nn
