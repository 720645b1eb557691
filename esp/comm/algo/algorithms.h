// Every algorithm: a pure function from a problem to what one rank does. The table gives them their names.
#pragma once

#include "esp/comm/schedule.h"

namespace esp::comm {

Schedule all_reduce_ring(const Problem& problem);
Schedule all_reduce_ring_shift0(const Problem& problem);
Schedule all_reduce_ring_bidirectional(const Problem& problem);
Schedule all_reduce_naive(const Problem& problem);
Schedule all_reduce_direct(const Problem& problem);
Schedule all_reduce_recursive_doubling(const Problem& problem);
Schedule all_reduce_halving_doubling(const Problem& problem);
Schedule all_reduce_tree(const Problem& problem);
Schedule all_reduce_double_tree(const Problem& problem);
Schedule all_reduce_hierarchical(const Problem& problem);
Schedule all_reduce_torus2d(const Problem& problem);
Schedule all_reduce_mesh2d(const Problem& problem);
Schedule all_reduce_torus3d(const Problem& problem);
Schedule all_reduce_torus(const Problem& problem);
Schedule broadcast_tree(const Problem& problem);
Schedule broadcast_ring_pipelined(const Problem& problem);
Schedule broadcast_scatter_allgather(const Problem& problem);
Schedule broadcast_naive(const Problem& problem);
Schedule reduce_tree(const Problem& problem);
Schedule reduce_ring_pipelined(const Problem& problem);
Schedule reduce_naive(const Problem& problem);
Schedule reduce_scatter_ring(const Problem& problem);
Schedule reduce_scatter_direct(const Problem& problem);
Schedule reduce_scatter_halving_doubling(const Problem& problem);
Schedule all_gather_ring(const Problem& problem);
Schedule all_gather_bruck(const Problem& problem);
Schedule all_gather_recursive_doubling(const Problem& problem);
Schedule all_gather_pairwise(const Problem& problem);
Schedule all_to_all_pairwise(const Problem& problem);
Schedule all_to_all_bruck(const Problem& problem);
Schedule all_to_all_hierarchical(const Problem& problem);
Schedule all_to_all_v_pairwise(const Problem& problem);
Schedule gather_tree(const Problem& problem);
Schedule gather_direct(const Problem& problem);
Schedule scatter_tree(const Problem& problem);
Schedule scatter_direct(const Problem& problem);
Schedule barrier_dissemination(const Problem& problem);

}  // namespace esp::comm
