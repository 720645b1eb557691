// y = x·W + b with W [in, out] and parameters `<name>.weight`, `<name>.bias`. On the tensor axis W is replicated,
// sharded by outputs (column parallel), or sharded by inputs (row parallel).
#pragma once

#include <string>

#include "esp/nn/forward_context.h"
#include "esp/nn/parameter.h"

namespace esp::nn {

class Linear {
 public:
  enum class Sharding : uint8_t { whole, column_parallel, row_parallel };
  Linear(ParameterList& list, const std::string& name, int64_t in, int64_t out, bool bias, Init init);
  // Column parallel: shards each of `sections` (their extents; empty: one section) in multiples of `grain`.
  static Linear column_parallel(ParameterList& list, const std::string& name, int64_t in, int64_t out, bool bias,
                                Init init, std::vector<int64_t> sections = {}, int64_t grain = 1);
  static Linear row_parallel(ParameterList& list, const std::string& name, int64_t in, int64_t out, bool bias,
                             Init init, int64_t grain = 1);

  autograd::Variable operator()(ForwardContext& pass, const autograd::Variable& x) const;

  autograd::Weight& weight() const { return weight_.weight; }
  autograd::Weight* bias() const { return bias_ ? &bias_->weight : nullptr; }

 private:
  Linear(ParameterList& list, const std::string& name, const tensor::Shape& shape, bool bias, Init init, Sharding kind,
         const ShardSpec& of_weight, const ShardSpec& of_bias);

  Sharding kind_ = Sharding::whole;
  Parameter& weight_;
  Parameter* bias_ = nullptr;
};

}  // namespace esp::nn
