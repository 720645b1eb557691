// Reference bandwidth of the link, measured in the same run as the benchmark. The «%link» column is relative to it.
#pragma once

#include <cstddef>

namespace esp::app {

// GB/s per rank when `num_ranks` threads copy private buffers of `bytes` bytes at once. This limits algorithms that
// copy the data once per hop.
double measure_copy_gbs(int num_ranks, size_t bytes);

// GB/s per rank when `num_ranks` threads form a ring and all send to the next one at once, over plain loopback TCP.
double measure_loopback_gbs(int num_ranks);

}  // namespace esp::app
