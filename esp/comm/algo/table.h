// The table of collective algorithms. Each row is implemented in algo/<collective>_<name>.cpp.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "esp/comm/schedule.h"

namespace esp::comm {

std::span<const AlgorithmRow> algorithms();

// Throws UsageError listing the known names of this op.
const AlgorithmRow& find_algorithm(Op op, std::string_view name);

// An algorithm id, as used in tags, is the index of the algorithm's row or one of the two constants below; -1 means
// that no algorithm is chosen yet.
inline constexpr int kFusedAlgorithm = 4000;
inline constexpr int kFileAlgorithm = 4001;  // a schedule supplied by the user
int algorithm_id(const AlgorithmRow& row);
std::string_view algorithm_name(int id);  // returns "unknown" for an id outside the table

// The rows of one op, in table order.
std::vector<const AlgorithmRow*> algorithms_for(Op op);

}  // namespace esp::comm
