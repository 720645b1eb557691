// The last projection and the loss on it: logits = x·Wᵀ + b with W [classes, in], a table like an embedding's, so that
// the two may be one (Press & Wolf 2017). Over a vocabulary it is divided by rows among those who hold the model.
#pragma once

#include <string>

#include "esp/autograd/functions/cross_entropy.h"
#include "esp/nn/parameter.h"
#include "esp/nn/pass.h"

namespace esp::nn {

class Head {
 public:
  // `tied` is the table to share; null: `<name>.weight` is made.
  Head(ParameterList& list, const std::string& name, int64_t in, int64_t classes, bool bias, Init init,
       Parameter* tied = nullptr, bool divided = false);

  autograd::Loss loss(Pass& pass, const autograd::Variable& x, const tensor::Tensor& targets, double scale) const;
  tensor::Tensor logits(Pass& pass, const tensor::Tensor& x) const;  // [.., in] → [.., classes]; nothing is recorded

 private:
  Parameter& weight_;
  Parameter* bias_ = nullptr;
};

}  // namespace esp::nn
