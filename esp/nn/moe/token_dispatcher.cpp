#include "esp/nn/moe/token_dispatcher.h"

namespace esp::nn {

using autograd::Variable;
using tensor::Tensor;

TokenDispatcher::DispatchedRows TokenDispatcher::dispatch(ForwardContext&, const Variable& rows,
                                                          const Tensor& counts) const {
  return {rows, counts, nullptr};
}

Variable TokenDispatcher::receive(ForwardContext&, DispatchedRows& dispatched) const {
  return dispatched.rows;
}

Variable TokenDispatcher::combine(ForwardContext&, const DispatchedRows&, const Variable& rows) const {
  return rows;
}

autograd::TokenRows TokenDispatcher::token_rows(ForwardContext&, const Variable& stream) const {
  const int64_t sequences = stream.value().dim(0);
  return {sequences, stream.value().rows() / sequences, {}};
}

void TokenDispatcher::sum_over_context(ForwardContext&, const Tensor&) const {}

}  // namespace esp::nn
