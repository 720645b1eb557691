// Core-to-core latency: the time to transfer a cache line between two cores, «near» or «far». On shared hosts it can
// change by a factor of three for seconds to minutes. Then everything that exchanges data through caches changes too,
// so only measurements in the same state are compared.
#pragma once

#include <string_view>

namespace esp::app {

struct CoreState {
  bool known = false;  // false: unknown, because there are fewer than two cores
  bool near = true;
  double ns = 0;
  std::string_view name() const { return !known ? "unknown" : near ? "near" : "far"; }
};

inline constexpr double kNearNs = 130;  // threshold; observed: near 55 to 75 ns, far 210 to 240 ns

CoreState probe_cores();

}  // namespace esp::app
