// GEMMs of a sharded matrix with the stream on one side, overlapped with the communication of the stream's rows.
//
// Overlap (Wang et al. 2023 split both sides alike): local rows are multiplied while remote rows arrive; finished rows
// are sent while the next are multiplied. A GEMM's bits are those of the whole, because rows are independent. Where
// three or more partial sums are added, the order depends on the partition.
#pragma once

#include "esp/kernel/gemm.h"
#include "esp/parallel/tp/tp_mappings.h"

namespace esp::parallel {

// The stream as GEMM input, and again when the weight gradients are computed. With sharded rows only the local rows are
// kept in between, unless the axis says otherwise.
class StreamInput {
 public:
  StreamInput(const TensorAxis& axis, const autograd::Variable& x, int64_t batch);

  const tensor::Shape& shape() const { return shape_; }  // [B, T, dim], all rows
  // y = x·W with the epilogue of `options`.
  void product(const tensor::Context& context, const tensor::Tensor& y, const tensor::Tensor& w,
               const kernel::GemmOptions& options);
  // Call before the GEMM's node is recorded; the gradient of all rows goes to `slot`.
  void record(autograd::Tape& tape);
  int slot() const { return slot_; }

  void start_again(const tensor::Context& context);  // starts the gather that `again` waits for
  const tensor::Tensor& again();                     // all rows

 private:
  TensorAxis axis_;
  autograd::Variable x_;
  tensor::Shape shape_;
  int slot_ = -1;
  tensor::Tensor all_;
  Work work_;
};

// Σ over the axis of h·W, h [B, T, local]: the stream.
tensor::Tensor gemm_to_stream(const tensor::Context& context, const TensorAxis& axis, const tensor::Tensor& h,
                              const tensor::Tensor& w);
// Input gradient of such a GEMM, from the gradient of the stream: into = dy·Wᵀ with the epilogue of `options`. Returns
// dy with all rows.
tensor::Tensor gemm_from_stream(const tensor::Context& context, const TensorAxis& axis,
                                const autograd::GradientTarget& into, const tensor::Tensor& dy, const tensor::Tensor& w,
                                const kernel::GemmOptions& options = {});

}  // namespace esp::parallel
