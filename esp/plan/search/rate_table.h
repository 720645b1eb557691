// Layer times for every combination of the axes that divide a layer (tp, cp, ep, sequence, context, recompute,
// micro_batch), computed once. The minimum over all completions of a partial choice is a lower bound of the step time,
// available long before all axes are set.
//
// A rate is in processor-seconds per sequence: (time of forward, backward and weight gradients of the whole model for
// one micro-batch) × (the tp·cp processors that share it) / (sequences of the micro-batch). A step takes at least rate
// · sequences / processors, for every pipeline and every synchronisation.
#pragma once

#include <vector>

#include "esp/plan/estimate.h"
#include "esp/plan/search/problem.h"
#include "esp/plan/search/space.h"

namespace esp::plan {

class RateTable {
 public:
  RateTable(const ModelShape& shape, const Cluster& cluster, const SearchSpace& space);
  // Seconds of one micro-batch on the tp·cp processors that share it: all layers, embedding and head.
  const StageTime& layer_time(const Choice& choice) const;
  // Smallest rate over all choices that share the first `num_set` axes. `num_set` may be at most the index of
  // micro_batch plus one.
  double least_rate(const Choice& choice, size_t num_set) const;

 private:
  static constexpr size_t kLevels = 7;
  size_t index(const Choice& choice, size_t level) const;

  size_t sizes_[kLevels];
  std::vector<StageTime> times_;
  std::vector<std::vector<double>> least_;  // [number of set axes of the seven][index of their values]: smallest rate
};

}  // namespace esp::plan
