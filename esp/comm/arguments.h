// Argument checks of a call, made before anything is sent.
#pragma once

#include <cstddef>

#include "esp/comm/call.h"

namespace esp::comm {

// Throws UsageError with the value given and the values accepted. A valid call costs a few comparisons.
void check_arguments(const Call& call, int rank, int size);

// Elements of the two buffers on this rank, laid out as in call.h; 0 for a buffer this rank does not have.
struct BufferCounts {
  size_t in = 0, out = 0;
};
BufferCounts buffer_counts_of(const Call& call, int rank, int size);

}  // namespace esp::comm
