#include "esp/plan/simulate/fair_share.h"

#include <algorithm>
#include <limits>

namespace esp::plan {

std::vector<double> max_min_rates(std::span<const std::vector<uint32_t>> routes, std::span<const double> capacities) {
  std::vector<double> rates(routes.size(), std::numeric_limits<double>::infinity());
  std::vector<double> left(capacities.begin(), capacities.end());
  std::vector<uint32_t> open(capacities.size(), 0);  // for each link: number of flows whose rate is not fixed yet
  std::vector<bool> settled(routes.size(), false);
  size_t growing = 0;
  for (size_t i = 0; i < routes.size(); ++i) {
    if (routes[i].empty()) {
      settled[i] = true;
      continue;
    }
    ++growing;
    for (const uint32_t link : routes[i]) ++open[link];
  }
  while (growing > 0) {
    // The next link that becomes full, and the rate that each of its flows gets.
    double least = std::numeric_limits<double>::infinity();
    size_t tightest = 0;
    for (size_t link = 0; link < left.size(); ++link) {
      if (open[link] == 0) continue;
      const double share = left[link] / open[link];
      if (share < least) least = share, tightest = link;
    }
    for (size_t i = 0; i < routes.size(); ++i) {
      if (settled[i]) continue;
      const auto& route = routes[i];
      if (std::find(route.begin(), route.end(), static_cast<uint32_t>(tightest)) == route.end()) continue;
      rates[i] = least;
      settled[i] = true;
      --growing;
      for (const uint32_t link : route) {
        left[link] = std::max(0.0, left[link] - least);
        --open[link];
      }
    }
  }
  return rates;
}

}  // namespace esp::plan
