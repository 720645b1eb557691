// The conjugate operators (Shoeybi et al. 2019; Korthikanti et al. 2022) around a divided product, as functions on a
// tape. Plain: f before it, the identity whose gradient is summed; g after it, the sum whose gradient is the identity.
// With the stream's rows divided: rows gathered before it, their gradients summed and scattered; and the other way
// round after it.
#pragma once

#include "esp/autograd/tape.h"
#include "esp/parallel/tp/line.h"

namespace esp::parallel {

// How the tensor axis is used: its line, and whether it divides the rows of the stream.
struct TensorAxis {
  Line* line = nullptr;  // null: alone
  bool sequence = false;
  bool keep_gathered = false;
  bool overlap = true;
  int64_t piece_bytes = 0;

  bool alone() const { return !line; }
  bool divides_rows() const { return line && sequence; }
};

// The shape of a stream of `batch` sequences with all its rows: [batch, T, dim].
tensor::Shape shape_of_all(const TensorAxis& axis, const tensor::Tensor& x, int64_t batch);
// Before the node of a product of all rows of x is recorded: the slot for its input's gradient, which is summed while
// the product's weights get theirs. -1 where x needs none.
int enter(autograd::Tape& tape, const TensorAxis& axis, const autograd::Variable& x, const tensor::Shape& all);
// The same for a computation that is itself a function on the tape, of one node, called next with what this returns:
// all rows of x, whose gradient is summed.
autograd::Variable entered(autograd::Tape& tape, const TensorAxis& axis, const autograd::Variable& x, int64_t batch);
// What the product made, this rank's summand [B, T, dim] → the stream. x's memory is used up.
autograd::Variable leave(autograd::Tape& tape, const TensorAxis& axis, const autograd::Variable& x);
// All rows of a divided stream, for a computation that everybody does alike: its gradient is cut, not summed.
autograd::Variable all_rows(autograd::Tape& tape, const TensorAxis& axis, const autograd::Variable& x, int64_t batch);

}  // namespace esp::parallel
