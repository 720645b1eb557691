// Time of the pieces of a pipeline, and traffic of its slowest stage. A model has only a few kinds of layers; each kind
// is timed once.
#pragma once

#include <vector>

#include "esp/plan/data_traffic.h"
#include "esp/plan/layers.h"
#include "esp/plan/states.h"

namespace esp::plan {

// Times of one kind of layer: `plain` without recomputation, `again` with the policy's recomputation. Both include the
// all-gathers and reduce-scatters of ZeRO 3.
struct LayerKind {
  LayerTime time;
  GatheredTime plain, again;
};
struct LayerKinds {
  LayerKind dense, expert, across, expert_across;  // across, expert_across: with cross-attention to an encoder
  bool has_expert = false;
  int64_t first_across = 0;
};
LayerKinds kinds_of(const EstimateContext& context);

// Number of ranks between neighbouring stages. If the pipeline does not fit in one domain of fast links, some stage
// boundaries lie between domains. The slow boundaries limit the pipeline, so the stride is then at least a domain.
double boundary_stride(const Cluster& cluster, const Policy& policy);

std::vector<StageTime> piece_times(const EstimateContext& context, const PipelinePieces& pieces,
                                   const LayerKinds& kinds);
// rows: tensor, context, expert and pipeline traffic of one stage per step. exposed_units_s: exposed seconds of the
// all-gathers and reduce-scatters of ZeRO 3.
struct StageTraffic {
  std::vector<GroupTraffic> rows;
  double exposed_units_s = 0;
};
StageTraffic stage_traffic(const EstimateContext& context, const PipelinePieces& pieces, const LayerKinds& kinds,
                           int stage, double sending_s);

}  // namespace esp::plan
