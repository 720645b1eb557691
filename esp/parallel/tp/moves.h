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
  bool overlap = true;

  bool alone() const { return !line; }
  bool divides_rows() const { return line && sequence; }
};

// The stream → what the product reads: the stream itself, or [batch, T, dim] with all rows.
autograd::Variable enter(autograd::Tape& tape, const TensorAxis& axis, const autograd::Variable& x, int64_t batch);
// What the product made, this rank's summand [B, T, dim] → the stream. x's memory is used up.
autograd::Variable leave(autograd::Tape& tape, const TensorAxis& axis, const autograd::Variable& x);
// All rows of a divided stream, for a computation that everybody does alike: its gradient is cut, not summed.
autograd::Variable all_rows(autograd::Tape& tape, const TensorAxis& axis, const autograd::Variable& x, int64_t batch);

}  // namespace esp::parallel
