// A graph from any bytes: refused with words, or rows whose weights are what check_topology says of them.
#include <cmath>
#include <string_view>

#include "esp/base/error.h"
#include "esp/sync/gossip/graph_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace esp::sync;
  try {
    const Topology graph = parse_graph({reinterpret_cast<const char*>(data), size}, "fuzz");
    check_topology(graph);
    if (graph.size() <= 64)
      if (const double gap = spectral_gap(graph); !(gap > -1e-6 && gap <= 1)) __builtin_trap();
  } catch (const esp::UsageError&) {
  }
  return 0;
}
