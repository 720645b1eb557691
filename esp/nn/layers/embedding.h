// Tokens to vectors: `<name>.weight` [rows, dim], read by id. Whoever shares the table takes its Parameter. A table of
// tokens is divided by rows among those who hold the model; small ones (positions, segments) everyone has.
#pragma once

#include <string>

#include "esp/nn/parameter.h"
#include "esp/nn/pass.h"

namespace esp::nn {

class Embedding {
 public:
  Embedding(ParameterList& list, const std::string& name, int64_t rows, int64_t dim, Init init, bool divided = false);

  // ids i32 [B, T] → [B, T, dim], plus the rows of `positions` from `first_position` on where given.
  autograd::Variable operator()(Pass& pass, const tensor::Tensor& ids, const Embedding* positions = nullptr,
                                int64_t first_position = 0) const;

  Parameter& parameter() const { return table_; }

 private:
  Parameter& table_;
};

}  // namespace esp::nn
