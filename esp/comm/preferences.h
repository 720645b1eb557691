// The algorithm that each op uses when a call says "auto": the parsed CommOptions::algorithms.
#pragma once

#include <array>
#include <string_view>

#include "esp/comm/call.h"

namespace esp::comm {

inline constexpr size_t kNumOps = static_cast<size_t>(Op::wait) + 1;

// Indexed by op: the id of a table row, kFusedAlgorithm, or kAutoAlgorithm.
using Preferences = std::array<int, kNumOps>;

// Parses "all_reduce=ring,broadcast=tree". Throws UsageError naming the unknown item and the known ones.
Preferences parse_preferences(std::string_view text);

// The id of the algorithm `name` of this op; "auto" gives kAutoAlgorithm.
int algorithm_id_of(Op op, std::string_view name);

}  // namespace esp::comm
