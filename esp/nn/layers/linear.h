// Linear layer y = x·W + b with W [in, out] and parameters `<name>.weight`, `<name>.bias`. Under tensor parallelism W
// is replicated, column-parallel (each rank holds a range of output columns and computes these columns of y), or
// row-parallel (each rank holds a range of input rows; the sum of the ranks' partial results is y).
#pragma once

#include <string>

#include "esp/nn/forward_context.h"
#include "esp/nn/parameter.h"

namespace esp::nn {

class Linear {
 public:
  enum class Sharding : uint8_t { whole, column_parallel, row_parallel };
  Linear(ParameterList& list, const std::string& name, int64_t in, int64_t out, bool bias, Init init);
  // Column-parallel layer. `sections`: the widths of packed outputs, for example q, k and v (empty: one section). Each
  // section is sharded separately, in multiples of `grain` columns (for example the head dimension).
  static Linear column_parallel(ParameterList& list, const std::string& name, int64_t in, int64_t out, bool bias,
                                Init init, std::vector<int64_t> sections = {}, int64_t grain = 1);
  // Row-parallel layer. The input rows are sharded in multiples of `grain`; the bias is replicated.
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
