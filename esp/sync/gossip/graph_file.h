// A graph as text: a line `nodes N`, then a line for each edge; what follows a # is a remark.
//
//   nodes 4
//   0 1          an edge: both hear each other, with Metropolis–Hastings weights
//   1 2
//
// Or, on every line, weights of the user's own: `i j w` says that i hears j with weight w, `i i w` what it keeps of its
// own. UsageError with file and line.
#pragma once

#include <string_view>

#include "esp/sync/gossip/topology.h"

namespace esp::sync {

inline constexpr int kMostNodes = 4096;

// `name` is the file's, for messages. Weights are as given; check_topology judges them.
Topology parse_graph(std::string_view text, std::string_view name);

}  // namespace esp::sync
