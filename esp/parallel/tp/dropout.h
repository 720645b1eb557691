// Dropout of a residual stream whose rows are sharded. The mask is indexed by the rows of the whole batch, so it does
// not depend on the sharding.
#pragma once

#include "esp/autograd/tape.h"
#include "esp/kernel/dropout.h"
#include "esp/parallel/tp/stream_rows.h"

namespace esp::parallel {

autograd::Variable dropout(autograd::Tape& tape, const autograd::Variable& x, double rate,
                           const kernel::DropoutKey& key, const StreamRows& rows);

}  // namespace esp::parallel
