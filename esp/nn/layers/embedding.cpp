#include "esp/nn/layers/embedding.h"

#include "esp/nn/parallel_ops.h"

namespace esp::nn {

Embedding::Embedding(ParameterList& list, const std::string& name, int64_t rows, int64_t dim, Init init, bool divided)
    : table_(list.add(name + ".weight", {rows, dim}, init, true, divided ? ShardSpec::along(0) : ShardSpec::none())) {}

autograd::Variable Embedding::operator()(ForwardContext& pass, const tensor::Tensor& ids, const Embedding* positions,
                                         int64_t first_position) const {
  return pass.ops->lookup(pass, ids, table_, positions ? &positions->table_ : nullptr, first_position);
}

}  // namespace esp::nn
