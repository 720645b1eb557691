// Embedding table: `<name>.weight` [rows, dim], looked up by id. A layer tied to the table uses the same Parameter. A
// token table is sharded by rows over the tensor axis (vocabulary parallel); small tables (positions, segments) are
// replicated.
#pragma once

#include <string>

#include "esp/nn/forward_context.h"
#include "esp/nn/parameter.h"

namespace esp::nn {

class Embedding {
 public:
  Embedding(ParameterList& list, const std::string& name, int64_t rows, int64_t dim, Init init, bool divided = false);

  // ids i32 [B, T] → [B, T, dim]. If `positions` is given, adds its rows from `first_position` on, one per token.
  autograd::Variable operator()(ForwardContext& pass, const tensor::Tensor& ids, const Embedding* positions = nullptr,
                                int64_t first_position = 0) const;

  Parameter& parameter() const { return table_; }

 private:
  Parameter& table_;
};

}  // namespace esp::nn
