// Graph file: a line `nodes N`, then one line per edge. A # starts a comment.
//
//   nodes 4
//   0 1          an edge in both directions, with Metropolis–Hastings weights
//   1 2
//
// Instead, every line may give an explicit weight. `i j w`: i receives from j with weight w. `i i w`: the weight of i
// itself. Errors are UsageErrors with file and line.
#pragma once

#include <string_view>

#include "esp/sync/gossip/gossip_topology.h"

namespace esp::sync {

inline constexpr int kMaxNodes = 4096;

// `name` is the file name for error messages. Does not check the weights; check_topology does.
GossipTopology parse_graph(std::string_view text, std::string_view name);

}  // namespace esp::sync
