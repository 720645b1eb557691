// Stages of about equal work: the linear partition of a row of units (stem, blocks, head) by their costs.
#pragma once

#include <span>
#include <vector>

namespace esp::parallel {

// Cuts the row in `pieces` runs of at least one unit each: piece q is [cuts[q], cuts[q + 1]), and cuts has one more
// than the pieces. The dearest piece is as cheap as can be; among such cuts the one whose pieces differ least (least
// sum of squares). UsageError when there are more pieces than units. Costs are at least 0.
std::vector<int> linear_partition(std::span<const double> costs, int pieces);

// The dearest piece of such a cut.
double dearest_piece(std::span<const double> costs, std::span<const int> cuts);

}  // namespace esp::parallel
