// The table of collective algorithms: one row each, its function in algo/<collective>_<name>.cpp.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "esp/comm/schedule.h"

namespace esp::comm {

std::span<const AlgorithmRow> algorithms();

// UsageError lists the names known for this op.
const AlgorithmRow& find_algorithm(Op op, std::string_view name);

// Algorithm ids in tags: the row's index, or one of the two constants below. -1: none chosen yet.
inline constexpr int kFusedAlgorithm = 4000;
inline constexpr int kFileAlgorithm = 4001;  // a schedule the user supplied
int algorithm_id(const AlgorithmRow& row);
std::string_view algorithm_name(int id);  // "unknown" for an id outside the table

// The rows of one op, in order.
std::vector<const AlgorithmRow*> algorithms_for(Op op);

}  // namespace esp::comm
