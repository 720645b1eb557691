// Column-parallel and row-parallel GEMMs on the residual stream, overlapped with the communication of its rows.
//
// Overlap: local rows are multiplied while remote rows arrive; finished rows are sent while the next rows are
// multiplied (Wang et al. 2023 split both sides alike). The result has the same bits as one GEMM over all
// rows, because rows are independent. With three or more ranks, the order in which partial sums are added depends on
// the partition into pieces.
#pragma once

#include "esp/kernel/gemm.h"
#include "esp/parallel/tp/tp_mappings.h"

namespace esp::parallel {

// The residual stream as the input of a GEMM in forward and of the weight-gradient GEMM in backward. If the rows are
// sharded, only the local rows are stored between forward and backward, unless axis.keep_gathered is set.
class StreamInput {
 public:
  StreamInput(const TensorAxis& axis, const autograd::Variable& x, int64_t batch);

  const tensor::Shape& shape() const { return shape_; }  // [B, T, dim], all rows
  // Computes y = x·W with the epilogue of `options`.
  void gemm_into(const tensor::Context& context, const tensor::Tensor& y, const tensor::Tensor& w,
                 const kernel::GemmOptions& options);
  // Call before the GEMM's node is recorded. The gradient of all rows goes to `slot`.
  void record(autograd::Tape& tape);
  int slot() const { return slot_; }

  void start_regather(const tensor::Context& context);  // starts the all-gather that `regathered` waits for
  const tensor::Tensor& regathered();                   // all rows

 private:
  TensorAxis axis_;
  autograd::Variable x_;
  tensor::Shape shape_;
  int slot_ = -1;
  tensor::Tensor all_;
  Work work_;
};

// Row-parallel GEMM: h·W with h [B, T, local], summed over the axis → the stream.
tensor::Tensor gemm_to_stream(const tensor::Context& context, const TensorAxis& axis, const tensor::Tensor& h,
                              const tensor::Tensor& w);
// Computes the input gradient of a row-parallel GEMM from dy, the gradient of the stream: into = dy·Wᵀ with the
// epilogue of `options`. Returns dy with all rows.
tensor::Tensor gemm_from_stream(const tensor::Context& context, const TensorAxis& axis,
                                const autograd::GradientTarget& into, const tensor::Tensor& dy, const tensor::Tensor& w,
                                const kernel::GemmOptions& options = {});

}  // namespace esp::parallel
