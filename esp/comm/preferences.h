// Which algorithm each op runs when a call leaves it open: CommOptions::algorithms, read once.
#pragma once

#include <array>
#include <string_view>

#include "esp/comm/call.h"

namespace esp::comm {

inline constexpr size_t kNumOps = static_cast<size_t>(Op::wait) + 1;

// By op: the id of a row of the table, kFusedAlgorithm, or kAutoAlgorithm.
using Preferences = std::array<int, kNumOps>;

// "all_reduce=ring,broadcast=tree". UsageError names what is not known and lists what is.
Preferences parse_preferences(std::string_view text);

// The id behind a name for this op; "auto" gives kAutoAlgorithm.
int algorithm_id_of(Op op, std::string_view name);

}  // namespace esp::comm
