// What the link under a benchmark can do, measured in the same run: the yardstick of the «% of link» column.
#pragma once

#include <cstddef>

namespace esp::app {

// GB/s per rank when `num_ranks` threads copy private buffers of `bytes` at once: what one copy per hop could reach.
double measure_copy_gbs(int num_ranks, size_t bytes);

// GB/s per rank when `num_ranks` threads in a ring each stream to the next over raw loopback TCP, all at once.
double measure_loopback_gbs(int num_ranks);

}  // namespace esp::app
