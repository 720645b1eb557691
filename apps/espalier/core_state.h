// Near or far: how long two cores take to hand a cache line over. On shared hosts it moves by a factor of three for
// seconds to minutes, and with it everything that exchanges through caches: measurements are compared only within one
// state.
#pragma once

#include <string_view>

namespace esp::app {

struct CoreState {
  bool known = false;  // false: fewer than two cores
  bool near = true;
  double ns = 0;
  std::string_view name() const { return !known ? "unknown" : near ? "near" : "far"; }
};

inline constexpr double kNearNs = 130;  // near is 55 to 75 ns on the machines seen, far 210 to 240

CoreState probe_cores();

}  // namespace esp::app
