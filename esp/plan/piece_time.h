// Time of the pieces of a pipeline and traffic of its slowest stage, put together from layers of the few kinds a model
// has, each timed once.
#pragma once

#include <vector>

#include "esp/plan/data_traffic.h"
#include "esp/plan/layers.h"
#include "esp/plan/states.h"

namespace esp::plan {

// One kind of layer, with ZeRO 3's traffic beside it: not recomputed and as the policy recomputes.
struct Kind {
  LayerTime time;
  Gathered plain, again;
};
struct Kinds {
  Kind dense, expert, across, expert_across;  // the latter two attend to an encoder as well
  bool has_expert = false;
  int64_t first_across = 0;
};
Kinds kinds_of(const Setting& setting);

// How far apart the ranks of neighbouring stages are; a pipeline that does not fit in one domain of fast links has
// boundaries between them, and goes at the pace of those.
double boundary_stride(const Cluster& cluster, const Policy& policy);

std::vector<StageTime> piece_times(const Setting& setting, const Pieces& pieces, const Kinds& kinds);
// Tensor, context, expert and pipeline traffic of stage `stage` in a step, and what ZeRO 3's units show of theirs.
struct StageTraffic {
  std::vector<Traffic> rows;
  double units_shown_s = 0;
};
StageTraffic stage_traffic(const Setting& setting, const Pieces& pieces, const Kinds& kinds, int stage,
                           double sending_s);

}  // namespace esp::plan
