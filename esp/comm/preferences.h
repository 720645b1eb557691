// The algorithm of each op when the call says "auto": CommOptions::algorithms, parsed once.
#pragma once

#include <array>
#include <string_view>

#include "esp/comm/call.h"

namespace esp::comm {

inline constexpr size_t kNumOps = static_cast<size_t>(Op::wait) + 1;

// By op: the id of a row of the table, kFusedAlgorithm, or kAutoAlgorithm.
using Preferences = std::array<int, kNumOps>;

// "all_reduce=ring,broadcast=tree". UsageError names the unknown item and lists the known ones.
Preferences parse_preferences(std::string_view text);

// The id behind a name for this op; "auto" gives kAutoAlgorithm.
int algorithm_id_of(Op op, std::string_view name);

}  // namespace esp::comm
