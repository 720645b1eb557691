#include "apps/espalier/core_state.h"

#include "esp/device/cpu/topology.h"

namespace esp::app {

CoreState probe_cores() {
  std::optional<double> ns = device::core_latency_ns();
  if (!ns) return {};
  return {true, *ns < kNearNs, *ns};
}

}  // namespace esp::app
