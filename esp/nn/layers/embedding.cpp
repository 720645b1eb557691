#include "esp/nn/layers/embedding.h"

#include "esp/autograd/functions/embedding.h"

namespace esp::nn {

Embedding::Embedding(ParameterList& list, const std::string& name, int64_t rows, int64_t dim, Init init)
    : table_(list.add(name + ".weight", {rows, dim}, init, true)) {}

autograd::Variable Embedding::operator()(Pass& pass, const tensor::Tensor& ids, const Embedding* positions,
                                         int64_t first_position) const {
  return autograd::embedding(*pass.tape, ids, table_.weight, positions ? &positions->table_.weight : nullptr,
                             first_position);
}

}  // namespace esp::nn
