// Cost of each algorithm in seconds, in the alpha-beta model: a message of x bytes costs alpha + x·beta; ports are
// single and full duplex. `auto` takes the cheapest algorithm. The simulator (comm/simulate.h) times the schedules
// themselves. Tests check that the two agree where a formula is exact.
#pragma once

#include "esp/comm/schedule.h"

namespace esp::comm::cost {

using Cost = double(const CollectiveSpec& spec, size_t element_bytes, double alpha, double beta);

Cost ring_all_reduce, ring_bidirectional, naive_all_reduce, recursive_doubling, halving_doubling, tree_all_reduce,
    double_tree, hierarchical_all_reduce, torus2d, mesh2d, torus3d, torus;
Cost tree, pipelined, scatter_allgather, naive;  // broadcast and reduce
Cost chunks_in_turn, chunks_in_log;              // N-1 or log N messages, (N-1)/N·S bytes
Cost halving, bruck_all_to_all, hierarchical_all_to_all, all_to_all_v, barrier;

}  // namespace esp::comm::cost
