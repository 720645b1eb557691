// Time of data parallelism per step: gradient reduction, ZeRO's reduce-scatters and all-gathers, optimizer update and
// offload. Also the exposed communication, which forward and backward do not hide.
#pragma once

#include <vector>

#include "esp/plan/layers.h"
#include "esp/plan/states.h"

namespace esp::plan {

struct DataTraffic {
  std::vector<GroupTraffic> rows;
  double exposed_s = 0, update_s = 0, offload_s = 0;
};
// Traffic of data parallelism per step. `slowest`: times of the slowest pipeline piece per micro-batch; gradient
// reduction overlaps the backward of this piece.
DataTraffic data_traffic(const EstimateContext& context, const StageTime& slowest, int chunks);

// Seconds of a layer's forward and of its input gradients, including ZeRO 3's exposed all-gathers and reduce-scatters.
// `held`: the layer's parameters on this rank.
struct GatheredTime {
  double forward = 0, backward = 0;
};
GatheredTime gathered_layer(const EstimateContext& context, const LayerTime& layer, const RankParameters& held,
                            RecomputePolicy recompute);

}  // namespace esp::plan
