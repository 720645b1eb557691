// The layers' times, asked once for every way of dividing a layer (tp, cp, ep, sequence, context, recompute,
// micro-batch), and the least of them below any beginning of a choice: from these a step's time is bounded long before
// all axes are set.
//
// A rate is processor-seconds of one sequence: the forward, backward and weight gradients of the whole model for one
// micro-batch, times the tp·cp processors that share it, over the sequences of the micro-batch. A step takes at least
// rate · sequences / processors, however it is piped and synchronised.
#pragma once

#include <vector>

#include "esp/plan/estimate.h"
#include "esp/plan/search/problem.h"
#include "esp/plan/search/space.h"

namespace esp::plan {

class RateTable {
 public:
  RateTable(const Shape& shape, const Cluster& cluster, const Space& space);
  // Of one micro-batch, all layers and both ends, on the processors that share it.
  const StageTime& of(const Choice& choice) const;
  // Least rate of all that begin so; num_set up to and with micro_batch's.
  double least(const Choice& choice, size_t num_set) const;

 private:
  static constexpr size_t kLevels = 7;
  size_t index(const Choice& choice, size_t level) const;

  size_t sizes_[kLevels];
  std::vector<StageTime> times_;
  std::vector<std::vector<double>> least_;  // by how many of the seven are set
};

}  // namespace esp::plan
