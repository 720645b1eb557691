// All collective algorithms. Each is a pure function from a CollectiveSpec to the Schedule of one rank. table.cpp maps
// algorithm names to these functions.
#pragma once

#include "esp/comm/schedule.h"

namespace esp::comm {

Schedule all_reduce_ring(const CollectiveSpec& spec);
Schedule all_reduce_ring_shift0(const CollectiveSpec& spec);
Schedule all_reduce_ring_bidirectional(const CollectiveSpec& spec);
Schedule all_reduce_naive(const CollectiveSpec& spec);
Schedule all_reduce_direct(const CollectiveSpec& spec);
Schedule all_reduce_recursive_doubling(const CollectiveSpec& spec);
Schedule all_reduce_halving_doubling(const CollectiveSpec& spec);
Schedule all_reduce_tree(const CollectiveSpec& spec);
Schedule all_reduce_double_tree(const CollectiveSpec& spec);
Schedule all_reduce_hierarchical(const CollectiveSpec& spec);
Schedule all_reduce_torus2d(const CollectiveSpec& spec);
Schedule all_reduce_mesh2d(const CollectiveSpec& spec);
Schedule all_reduce_torus3d(const CollectiveSpec& spec);
Schedule all_reduce_torus(const CollectiveSpec& spec);
Schedule broadcast_tree(const CollectiveSpec& spec);
Schedule broadcast_ring_pipelined(const CollectiveSpec& spec);
Schedule broadcast_scatter_allgather(const CollectiveSpec& spec);
Schedule broadcast_naive(const CollectiveSpec& spec);
Schedule reduce_tree(const CollectiveSpec& spec);
Schedule reduce_ring_pipelined(const CollectiveSpec& spec);
Schedule reduce_naive(const CollectiveSpec& spec);
Schedule reduce_scatter_ring(const CollectiveSpec& spec);
Schedule reduce_scatter_direct(const CollectiveSpec& spec);
Schedule reduce_scatter_halving_doubling(const CollectiveSpec& spec);
Schedule all_gather_ring(const CollectiveSpec& spec);
Schedule all_gather_bruck(const CollectiveSpec& spec);
Schedule all_gather_recursive_doubling(const CollectiveSpec& spec);
Schedule all_gather_pairwise(const CollectiveSpec& spec);
Schedule all_to_all_pairwise(const CollectiveSpec& spec);
Schedule all_to_all_bruck(const CollectiveSpec& spec);
Schedule all_to_all_hierarchical(const CollectiveSpec& spec);
Schedule all_to_all_v_pairwise(const CollectiveSpec& spec);
Schedule gather_tree(const CollectiveSpec& spec);
Schedule gather_direct(const CollectiveSpec& spec);
Schedule scatter_tree(const CollectiveSpec& spec);
Schedule scatter_direct(const CollectiveSpec& spec);
Schedule barrier_dissemination(const CollectiveSpec& spec);

}  // namespace esp::comm
