// Max–min fair rates: a flow can only get more if another flow with no more than it gets less. Computed by progressive
// filling: all flows grow at the same rate; a link that becomes full fixes the rates of its flows; the other flows
// continue to grow.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace esp::plan {

// Returns the rate of each flow. `routes[i]`: the links of flow i, each once; a flow without links gets an infinite
// rate. `capacities`: one per link.
std::vector<double> max_min_rates(std::span<const std::vector<uint32_t>> routes, std::span<const double> capacities);

}  // namespace esp::plan
