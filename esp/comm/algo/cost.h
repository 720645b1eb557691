// Cost of each algorithm in seconds, in the alpha-beta model: a message of x bytes costs alpha + x·beta, and each rank
// has one full-duplex port. `auto` selects the cheapest algorithm. These are closed formulas; the simulator
// (comm/simulate.h) computes the time from the schedules instead. Tests check that both are equal where the formula is
// exact.
#pragma once

#include "esp/comm/schedule.h"

namespace esp::comm::cost {

using Cost = double(const CollectiveSpec& spec, size_t element_bytes, double alpha, double beta);

Cost ring_all_reduce, ring_bidirectional, naive_all_reduce, recursive_doubling, halving_doubling, tree_all_reduce,
    double_tree, hierarchical_all_reduce, torus2d, mesh2d, torus3d, torus;
Cost tree, pipelined, scatter_allgather, naive;  // costs of the broadcast and reduce algorithms
Cost linear_chunks, log_chunks;  // cost of N-1 (linear) or log N (log) messages that carry (N-1)/N·S bytes in total
Cost halving, bruck_all_to_all, hierarchical_all_to_all, all_to_all_v, barrier;

}  // namespace esp::comm::cost
