// Routing statistics of one forward pass: each layer writes its entry; complete at the end of the pass.
#pragma once

#include <cstdint>
#include <vector>

namespace esp::nn {

struct RoutingReport {
  struct Layer {
    std::vector<int64_t> loads;  // choices per expert of the local tokens, dropped ones included
    int64_t tokens = 0, dropped = 0;
    double aux = 0, z = 0;  // sums over tokens of E·Σ f_e·p_e and of (log Σ exp)²
  };
  std::vector<Layer> layers;  // by the layer's number; empty entries have no experts
};

}  // namespace esp::nn
