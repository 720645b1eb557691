// y = x·W + b with W [in, out] and parameters `<name>.weight`, `<name>.bias`. Where several hold one model, either
// everyone has all of it, or its outputs are divided (columns), or its inputs (rows).
#pragma once

#include <string>

#include "esp/nn/parameter.h"
#include "esp/nn/pass.h"

namespace esp::nn {

class Linear {
 public:
  enum class Kind : uint8_t { whole, columns, rows };
  Linear(ParameterList& list, const std::string& name, int64_t in, int64_t out, bool bias, Init init);
  // The outputs divided: each of `sections` (their extents; empty: one), in multiples of `grain`.
  static Linear by_columns(ParameterList& list, const std::string& name, int64_t in, int64_t out, bool bias, Init init,
                           std::vector<int64_t> sections = {}, int64_t grain = 1);
  static Linear by_rows(ParameterList& list, const std::string& name, int64_t in, int64_t out, bool bias, Init init,
                        int64_t grain = 1);

  autograd::Variable operator()(Pass& pass, const autograd::Variable& x) const;

  autograd::Weight& weight() const { return weight_.weight; }
  autograd::Weight* bias() const { return bias_ ? &bias_->weight : nullptr; }

 private:
  Linear(ParameterList& list, const std::string& name, const tensor::Shape& shape, bool bias, Init init, Kind kind,
         const Cut& of_weight, const Cut& of_bias);

  Kind kind_ = Kind::whole;
  Parameter& weight_;
  Parameter* bias_ = nullptr;
};

}  // namespace esp::nn
