// Balanced pipeline stages: linear partition of a sequence of units (stem, blocks, head) by cost.
#pragma once

#include <span>
#include <vector>

namespace esp::parallel {

// Partitions the units into `pieces` parts of at least one unit. Returns `cuts`: part q is [cuts[q], cuts[q + 1]), so
// there is one entry more than parts. Minimises the largest part cost, then the sum of squares. Throws UsageError if
// there are more parts than units. Costs must be >= 0.
std::vector<int> linear_partition(std::span<const double> costs, int pieces);

// Returns the largest part cost of the partition `cuts`.
double max_piece_cost(std::span<const double> costs, std::span<const int> cuts);

}  // namespace esp::parallel
