// Routing statistics of one forward pass. Each layer writes its own entry; the report is complete when the pass ends.
#pragma once

#include <cstdint>
#include <vector>

namespace esp::nn {

struct RoutingReport {
  struct Layer {
    std::vector<int64_t> loads;  // [expert]: number of local tokens routed to it, including the dropped ones
    int64_t tokens = 0;          // number of local tokens
    int64_t dropped = 0;         // number of expert choices dropped for lack of capacity
    double aux = 0;              // load-balancing loss E·Σ_e f_e·p_e, summed over the local tokens
    double z = 0;                // router z-loss (log Σ_e exp)², summed over the local tokens
  };
  std::vector<Layer> layers;  // indexed by layer; empty for layers without experts
};

}  // namespace esp::nn
