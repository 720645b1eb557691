// Graph file: a line `nodes N`, then one line per edge; # starts a comment.
//
//   nodes 4
//   0 1          an edge in both directions, with Metropolis–Hastings weights
//   1 2
//
// Or, on every line, explicit weights: `i j w`: i receives from j with weight w; `i i w`: the weight of i itself.
// UsageError with file and line.
#pragma once

#include <string_view>

#include "esp/sync/gossip/gossip_topology.h"

namespace esp::sync {

inline constexpr int kMaxNodes = 4096;

// `name` is the file name for messages. Weights are not checked here; see check_topology.
GossipTopology parse_graph(std::string_view text, std::string_view name);

}  // namespace esp::sync
