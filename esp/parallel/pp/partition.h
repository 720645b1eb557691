// Balanced pipeline stages: linear partition of a sequence of units (stem, blocks, head) by cost.
#pragma once

#include <span>
#include <vector>

namespace esp::parallel {

// Partitions the units into `pieces` runs of at least one unit: piece q is [cuts[q], cuts[q + 1]), and cuts has one
// entry more than the pieces. Minimises the largest piece cost, then the sum of squares. UsageError if there are more
// pieces than units. Costs are >= 0.
std::vector<int> linear_partition(std::span<const double> costs, int pieces);

// The largest piece cost of such a partition.
double max_piece_cost(std::span<const double> costs, std::span<const int> cuts);

}  // namespace esp::parallel
