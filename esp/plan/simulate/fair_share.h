// Max–min fair shares of links: no flow can get more without taking from one that has no more. Progressive filling: all
// flows grow at one pace; a full link freezes its flows; the others continue.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace esp::plan {

// Rates of flows; `routes[i]` are the links of flow i (each once), `capacities` by link. A flow without links gets
// infinity.
std::vector<double> max_min_rates(std::span<const std::vector<uint32_t>> routes, std::span<const double> capacities);

}  // namespace esp::plan
