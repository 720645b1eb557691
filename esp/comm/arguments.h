// Argument checks of a call. They run before any data is sent.
#pragma once

#include <cstddef>

#include "esp/comm/call.h"

namespace esp::comm {

// Throws UsageError naming the given value and the accepted values. Checking a valid call costs a few comparisons.
void check_arguments(const Call& call, int rank, int size);

// Number of elements of the input and of the output on this rank, as defined in call.h. 0 means that this rank does not
// use the buffer.
struct BufferCounts {
  size_t in = 0, out = 0;
};
BufferCounts buffer_counts_of(const Call& call, int rank, int size);

}  // namespace esp::comm
