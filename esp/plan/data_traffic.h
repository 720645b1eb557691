// Cost of data parallelism in a step: gradient sums, ZeRO's scatters and gathers, the update, offload; and the part of
// it hidden behind backward and forward.
#pragma once

#include <vector>

#include "esp/plan/layers.h"
#include "esp/plan/states.h"

namespace esp::plan {

struct DataTraffic {
  std::vector<GroupTraffic> rows;
  double exposed_s = 0, update_s = 0, offload_s = 0;
};
// `slowest` is the piece with the longest time per micro-batch: its backward hides the sums.
DataTraffic data_traffic(const Setting& setting, const StageTime& slowest, int chunks);

// Forward and input-gradient time of a layer with these parameters, with the gathers and scatters of ZeRO 3.
struct GatheredTime {
  double forward = 0, backward = 0;
};
GatheredTime gathered_layer(const Setting& setting, const LayerTime& layer, const HeldParameters& held,
                            RecomputePolicy recompute);

}  // namespace esp::plan
