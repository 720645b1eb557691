// TokenDispatcher: moves token rows to their experts and back. The base class is for one rank and moves no data;
// esp/parallel/ep implements expert parallelism.
//
// `dispatch` starts the transfer and returns, so that computation before `receive` overlaps with it. In backward, the
// transfer of the rows' gradients overlaps with the tape nodes that were recorded between the two calls. All ranks make
// the same calls in the same order.
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
    tensor::Tensor counts;  // i64: rows per expert of the model; after `receive`, rows per local expert
    std::shared_ptr<void> exchange;
  };
  // Sends `rows` [M, dim], ordered by expert, then by token.
  virtual DispatchedRows dispatch(ForwardContext& pass, const autograd::Variable& rows,
                                  const tensor::Tensor& counts) const;
  // Waits and returns the rows for the local experts, ordered by expert, then sender, then token.
  virtual autograd::Variable receive(ForwardContext& pass, DispatchedRows& dispatched) const;
  // Returns the outputs of the experts to the senders, in the order in which the rows were sent.
  virtual autograd::Variable combine(ForwardContext& pass, const DispatchedRows& dispatched,
                                     const autograd::Variable& rows) const;

  // Returns the sequence and the token number of each row of the stream.
  virtual autograd::TokenRows token_rows(ForwardContext& pass, const autograd::Variable& stream) const;
  // Sums the i32 tensor `values`, in place, over all ranks that hold tokens of the same sequences.
  virtual void sum_over_context(ForwardContext& pass, const tensor::Tensor& values) const;
};

}  // namespace esp::nn
