// Fuzz test: parses arbitrary bytes as a graph file. The parser must throw an error, or return rows that check_topology
// accepts or rejects.
#include <cmath>
#include <string_view>

#include "esp/base/error.h"
#include "esp/sync/gossip/graph_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace esp::sync;
  try {
    const GossipTopology graph = parse_graph({reinterpret_cast<const char*>(data), size}, "fuzz");
    check_topology(graph);
    if (graph.size() <= 64)
      if (const double gap = spectral_gap(graph); !(gap > -1e-6 && gap <= 1)) __builtin_trap();
  } catch (const esp::UsageError&) {
  }
  return 0;
}
