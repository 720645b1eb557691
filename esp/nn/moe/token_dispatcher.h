// TokenDispatcher: moves token rows to their experts and back. The base class is for one rank and moves nothing;
// esp/parallel/ep implements expert parallelism.
//
// `dispatch` starts the transfer and returns; computation until `receive` overlaps with it. In backward the gradients
// of the rows travel while the nodes recorded between the two calls run. All ranks make the same calls in the same
// order.
#pragma once

#include <memory>

#include "esp/autograd/functions/routing.h"
#include "esp/nn/forward_context.h"

namespace esp::nn {

class TokenDispatcher {
 public:
  virtual ~TokenDispatcher() = default;

  struct DispatchedRows {
    autograd::Variable rows;
    tensor::Tensor counts;  // i64: rows per expert of the model; after `receive`, per local expert
    std::shared_ptr<void> way;
  };
  // `rows` [M, dim], ordered by expert, then by token.
  virtual DispatchedRows dispatch(ForwardContext& pass, const autograd::Variable& rows,
                                  const tensor::Tensor& counts) const;
  // The rows for the local experts, ordered by expert, then sender, then token.
  virtual autograd::Variable receive(ForwardContext& pass, DispatchedRows& dispatched) const;
  // Returns the experts' outputs to the senders, in the order in which the rows were sent.
  virtual autograd::Variable combine(ForwardContext& pass, const DispatchedRows& dispatched,
                                     const autograd::Variable& rows) const;

  // The tokens and sequences that the rows of a stream belong to.
  virtual autograd::TokenRows token_rows(ForwardContext& pass, const autograd::Variable& stream) const;
  // Sums i32 `values` over all ranks that hold tokens of the same sequences.
  virtual void sum_over_context(ForwardContext& pass, const tensor::Tensor& values) const;
};

}  // namespace esp::nn
