// Embedding table: `<name>.weight` [rows, dim], read by id. A tied layer shares its Parameter. A token table is sharded
// by rows over the tensor axis (vocabulary parallel); small tables (positions, segments) are replicated.
#pragma once

#include <string>

#include "esp/nn/forward_context.h"
#include "esp/nn/parameter.h"

namespace esp::nn {

class Embedding {
 public:
  Embedding(ParameterList& list, const std::string& name, int64_t rows, int64_t dim, Init init, bool divided = false);

  // ids i32 [B, T] → [B, T, dim], plus the rows of `positions` from `first_position` on where given.
  autograd::Variable operator()(ForwardContext& pass, const tensor::Tensor& ids, const Embedding* positions = nullptr,
                                int64_t first_position = 0) const;

  Parameter& parameter() const { return table_; }

 private:
  Parameter& table_;
};

}  // namespace esp::nn
