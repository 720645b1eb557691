// y = x·W + b with W [in, out] and parameters `<name>.weight`, `<name>.bias`.
#pragma once

#include <string>

#include "esp/nn/parameter.h"
#include "esp/nn/pass.h"

namespace esp::nn {

class Linear {
 public:
  Linear(ParameterList& list, const std::string& name, int64_t in, int64_t out, bool bias, Init init);

  autograd::Variable operator()(Pass& pass, const autograd::Variable& x) const;

  autograd::Weight& weight() const { return weight_.weight; }
  autograd::Weight* bias() const { return bias_ ? &bias_->weight : nullptr; }

 private:
  Parameter& weight_;
  Parameter* bias_ = nullptr;
};

}  // namespace esp::nn
