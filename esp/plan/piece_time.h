// Time of the pieces of a pipeline and traffic of its slowest stage, assembled from the few kinds of layers of a model,
// each timed once.
#pragma once

#include <vector>

#include "esp/plan/data_traffic.h"
#include "esp/plan/layers.h"
#include "esp/plan/states.h"

namespace esp::plan {

// One kind of layer, with ZeRO 3's traffic: without recomputation and with the policy's.
struct LayerKind {
  LayerTime time;
  GatheredTime plain, again;
};
struct LayerKinds {
  LayerKind dense, expert, across, expert_across;  // the latter two also attend to an encoder
  bool has_expert = false;
  int64_t first_across = 0;
};
LayerKinds kinds_of(const Setting& setting);

// Distance of the ranks of neighbouring stages; a pipeline that does not fit in one domain of fast links has boundaries
// between domains, which determine its pace.
double boundary_stride(const Cluster& cluster, const Policy& policy);

std::vector<StageTime> piece_times(const Setting& setting, const Pieces& pieces, const LayerKinds& kinds);
// Tensor, context, expert and pipeline traffic of stage `stage` per step, and the exposed part of ZeRO 3's units.
struct StageTraffic {
  std::vector<GroupTraffic> rows;
  double exposed_units_s = 0;
};
StageTraffic stage_traffic(const Setting& setting, const Pieces& pieces, const LayerKinds& kinds, int stage,
                           double sending_s);

}  // namespace esp::plan
