// Linear layers: replicated, column-parallel (W sharded by output columns) or row-parallel (W sharded by input rows).
#include "esp/nn/layers/linear.h"

#include "esp/autograd/functions/linear.h"
#include "esp/nn/parallel_ops.h"

namespace esp::nn {

Linear::Linear(ParameterList& list, const std::string& name, int64_t in, int64_t out, bool bias, Init init)
    : Linear(list, name, {in, out}, bias, init, Sharding::whole, {}, {}) {}

Linear::Linear(ParameterList& list, const std::string& name, const tensor::Shape& shape, bool bias, Init init,
               Sharding kind, const ShardSpec& of_weight, const ShardSpec& of_bias)
    : kind_(kind), weight_(list.add(name + ".weight", shape, init, true, of_weight)) {
  if (bias) bias_ = &list.add(name + ".bias", {shape.dim(1)}, Init::zeros(), false, of_bias);
}

Linear Linear::column_parallel(ParameterList& list, const std::string& name, int64_t in, int64_t out, bool bias,
                               Init init, std::vector<int64_t> sections, int64_t grain) {
  return {list, name, {in, out}, bias, init, Sharding::column_parallel, {1, sections, grain}, {0, sections, grain}};
}

Linear Linear::row_parallel(ParameterList& list, const std::string& name, int64_t in, int64_t out, bool bias, Init init,
                            int64_t grain) {
  return {list, name, {in, out}, bias, init, Sharding::row_parallel, {0, {}, grain}, {}};
}

autograd::Variable Linear::operator()(ForwardContext& pass, const autograd::Variable& x) const {
  switch (kind_) {
    case Sharding::column_parallel:
      return pass.ops->column_parallel(pass, x, weight(), bias());
    case Sharding::row_parallel:
      return pass.ops->row_parallel(pass, x, weight(), bias());
    case Sharding::whole:
      break;
  }
  return autograd::linear(*pass.tape, x, weight(), bias());
}

}  // namespace esp::nn
