// The conjugate operators f and g (Shoeybi et al. 2019; Korthikanti et al. 2022) around a tensor-parallel GEMM, as
// functions on a tape. copy_to_tp (f): identity forward, all-reduce of the gradient backward. reduce_from_tp (g):
// all-reduce forward, identity backward. With sequence parallel: all-gather forward and reduce-scatter backward before
// the GEMM, the reverse after it.
#pragma once

#include "esp/autograd/tape.h"
#include "esp/parallel/tp/tp_communicator.h"

namespace esp::parallel {

// The tensor axis: its communicator, and whether it shards the rows of the stream.
struct TensorAxis {
  TpCommunicator* tp_comm = nullptr;  // null: one rank
  bool sequence = false;
  bool keep_gathered = false;
  bool overlap = true;
  int64_t piece_bytes = 0;

  bool single_rank() const { return !tp_comm; }
  bool shards_rows() const { return tp_comm && sequence; }
};

// Shape of a stream of `batch` sequences with all rows gathered: [batch, T, dim].
tensor::Shape shape_of_all(const TensorAxis& axis, const tensor::Tensor& x, int64_t batch);
// f (copy_to_tp), for a GEMM on all rows of x. Call it before the node of the GEMM is recorded. Returns the slot of the
// GEMM's input gradient, which is summed while the weight gradients are computed; -1 if x needs no gradient.
int copy_to_tp_slot(autograd::Tape& tape, const TensorAxis& axis, const autograd::Variable& x,
                    const tensor::Shape& all);
// f, for a computation that is a single node on the tape. The caller must record that node next, with the returned
// value as its input. Returns all rows of x; their gradient is summed over the ranks.
autograd::Variable copy_to_tp(autograd::Tape& tape, const TensorAxis& axis, const autograd::Variable& x, int64_t batch);
// g (reduce_from_tp): sums the partial sums [B, T, dim] of all ranks into the stream. Reuses x's memory.
autograd::Variable reduce_from_tp(autograd::Tape& tape, const TensorAxis& axis, const autograd::Variable& x);
// Returns all rows of a sharded stream, for a computation that is replicated on all ranks. Its gradient is sliced, not
// summed.
autograd::Variable gather_replicated_rows(autograd::Tape& tape, const TensorAxis& axis, const autograd::Variable& x,
                                          int64_t batch);

}  // namespace esp::parallel
