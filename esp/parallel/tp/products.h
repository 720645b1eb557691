// Products of a divided matrix with the stream on one side, and the moves of the stream's rows under them.
//
// Overlap (Wang et al. 2023 cut both sides so): rows that are here are multiplied while the others' come; rows that are
// done are on their way while the next are multiplied. The bits of a product are those of the whole, because rows do
// not know each other; where three or more are summed, the order follows the cut.
#pragma once

#include "esp/kernel/gemm.h"
#include "esp/parallel/tp/moves.h"

namespace esp::parallel {

// The stream as a product reads it, and again when the product's weights get their gradient. With divided rows only
// those here are kept in between, unless the axis says otherwise.
class StreamInput {
 public:
  StreamInput(const TensorAxis& axis, const autograd::Variable& x, int64_t batch);

  const tensor::Shape& shape() const { return shape_; }  // [B, T, dim]: all rows
  // y = x·W with the epilogue of `options`.
  void product(const tensor::Context& context, const tensor::Tensor& y, const tensor::Tensor& w,
               const kernel::GemmOptions& options);
  // Before the product's node is recorded; the gradient of all rows goes to `slot`.
  void record(autograd::Tape& tape);
  int slot() const { return slot_; }

  void start_again(const tensor::Context& context);  // what `again` will wait for
  const tensor::Tensor& again();                     // all rows

 private:
  TensorAxis axis_;
  autograd::Variable x_;
  tensor::Shape shape_;
  int slot_ = -1;
  tensor::Tensor all_;
  Work work_;
};

// Σ over the axis of h·W, h [B, T, own]: the stream.
tensor::Tensor product_to_stream(const tensor::Context& context, const TensorAxis& axis, const tensor::Tensor& h,
                                 const tensor::Tensor& w);
// The gradient of such a product's input, from that of the stream: into = dy·Wᵀ with the epilogue of `options`.
// Returns dy with all its rows.
tensor::Tensor product_from_stream(const tensor::Context& context, const TensorAxis& axis,
                                   const autograd::GradientTarget& into, const tensor::Tensor& dy,
                                   const tensor::Tensor& w, const kernel::GemmOptions& options = {});

}  // namespace esp::parallel
