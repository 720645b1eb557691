// What keeping copies alike costs a step: gradient sums, ZeRO's scatters and gathers, the update, offload; and what of
// it hides behind backward and forward.
#pragma once

#include <vector>

#include "esp/plan/layers.h"
#include "esp/plan/states.h"

namespace esp::plan {

struct DataTraffic {
  std::vector<Traffic> rows;
  double exposed_s = 0, update_s = 0, offload_s = 0;
};
// `slowest` is the piece that takes longest for one micro-batch: its backward is what sums hide behind.
DataTraffic data_traffic(const Setting& setting, const StageTime& slowest, int chunks);

// The forward and input-gradient time of a layer of these parameters with the gathers and scatters of ZeRO 3 beside it.
struct Gathered {
  double forward = 0, backward = 0;
};
Gathered gathered_layer(const Setting& setting, const LayerTime& layer, const Held& held, Recompute recompute);

}  // namespace esp::plan
