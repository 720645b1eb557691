// Is this call one that can work? Asked before anything is sent.
#pragma once

#include <cstddef>

#include "esp/comm/call.h"

namespace esp::comm {

// Throws UsageError saying what was given and what would have done. Costs a few comparisons when all is well.
void check_arguments(const Call& call, int rank, int size);

// Elements of the two buffers on this rank, as call.h lays them out; 0 for a buffer this rank does not have.
struct Extents {
  size_t in = 0, out = 0;
};
Extents extents_of(const Call& call, int rank, int size);

}  // namespace esp::comm
