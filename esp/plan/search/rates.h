// Layer times, computed once for every way of dividing a layer (tp, cp, ep, sequence, context, recompute, micro-batch),
// and the least of them over the completions of a partial choice: a lower bound of a step's time long before all axes
// are set.
//
// A rate is processor-seconds per sequence: the forward, backward and weight gradients of the whole model for one
// micro-batch, times the tp·cp processors that share it, over the sequences of the micro-batch. A step takes at least
// rate · sequences / processors, for any pipeline and synchronisation.
#pragma once

#include <vector>

#include "esp/plan/estimate.h"
#include "esp/plan/search/problem.h"
#include "esp/plan/search/space.h"

namespace esp::plan {

class RateTable {
 public:
  RateTable(const ModelShape& shape, const Cluster& cluster, const Space& space);
  // Per micro-batch, all layers and both ends, on the processors that share it.
  const StageTime& of(const Choice& choice) const;
  // Least rate over all choices with this beginning; num_set is at most the index of micro_batch plus one.
  double least(const Choice& choice, size_t num_set) const;

 private:
  static constexpr size_t kLevels = 7;
  size_t index(const Choice& choice, size_t level) const;

  size_t sizes_[kLevels];
  std::vector<StageTime> times_;
  std::vector<std::vector<double>> least_;  // by the number of the seven that are set
};

}  // namespace esp::plan
