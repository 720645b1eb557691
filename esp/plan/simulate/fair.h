// How flows share links: max–min fairness. No flow can be given more without taking from one that has no more than it:
// fill all flows at one pace; a link that is full stops its own; go on with the rest.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace esp::plan {

// Rates of flows, `routes[i]` the links flow i passes (each once), `capacities` by link. A flow over no link is
// boundless and gets infinity.
std::vector<double> max_min_rates(std::span<const std::vector<uint32_t>> routes, std::span<const double> capacities);

}  // namespace esp::plan
