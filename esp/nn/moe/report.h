// What routers did in one pass, for whoever looks on: written by each layer at its place, whole at the pass's end.
#pragma once

#include <cstdint>
#include <vector>

namespace esp::nn {

struct RoutingReport {
  struct Layer {
    std::vector<int64_t> loads;  // choices of each expert, of the tokens held here, dropped ones included
    int64_t tokens = 0, dropped = 0;
    double aux = 0, z = 0;  // sums over tokens of E·Σ f_e·p_e and of (log Σ exp)²
  };
  std::vector<Layer> layers;  // by the layer's number; empty entries have no experts
};

}  // namespace esp::nn
