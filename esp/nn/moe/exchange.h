// How rows come to the experts that are to see them, and back, where several may hold the experts and several the
// tokens. The base class is one holder's: nothing moves. esp/parallel/ep has the others'.
//
// `send` begins and returns; what is computed until `receive` overlaps the way. In backward the gradients of the rows
// travel while what was recorded between the two runs back. Holders make the same calls in the same order.
#pragma once

#include <memory>

#include "esp/autograd/functions/routing.h"
#include "esp/nn/pass.h"

namespace esp::nn {

class ExpertExchange {
 public:
  virtual ~ExpertExchange() = default;

  struct Parcel {
    autograd::Variable rows;
    tensor::Tensor counts;  // i64: rows of each expert of the model, and after `receive` of each that is held here
    std::shared_ptr<void> way;
  };
  // `rows` [M, dim] by expert and then by token.
  virtual Parcel send(Pass& pass, const autograd::Variable& rows, const tensor::Tensor& counts) const;
  // The rows for the experts here, by expert, then by who sent them, then by token.
  virtual autograd::Variable receive(Pass& pass, Parcel& parcel) const;
  // What the experts made of them, to those who sent them, in the order in which they were sent.
  virtual autograd::Variable send_back(Pass& pass, const Parcel& parcel, const autograd::Variable& rows) const;

  // Which tokens of which sequences the rows of a stream are.
  virtual autograd::Rows rows(Pass& pass, const autograd::Variable& stream) const;
  // i32 `values` become their sums over all who hold tokens of the same sequences.
  virtual void add_up(Pass& pass, const tensor::Tensor& values) const;
};

}  // namespace esp::nn
