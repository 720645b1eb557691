// Dropout of a stream with local rows only, numbered as in the whole batch.
#pragma once

#include "esp/autograd/tape.h"
#include "esp/kernel/dropout.h"
#include "esp/parallel/tp/stream_rows.h"

namespace esp::parallel {

autograd::Variable dropout(autograd::Tape& tape, const autograd::Variable& x, double rate,
                           const kernel::DropoutKey& key, const StreamRows& rows);

}  // namespace esp::parallel
