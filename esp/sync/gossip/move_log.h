// Compressed gossip (CHOCO-SGD, Koloskova et al. 2019): each replica sends its compressed change since its last
// message, and its neighbours accumulate these changes.
//
//   q_i = C(x_i − x̂_i);  x̂_i += q_i;  s_i += Σ_j w_ij·q_j;  x_i += γ·(s_i − x̂_i)
//
// x̂_i is the estimate that neighbours have of this replica; s_i is the weighted sum of the estimates of its neighbours
// and itself: two vectors for any number of neighbours. Both start at the common initial weights. The mean of all
// replicas is preserved (W is doubly stochastic); changes and compression errors vanish as replicas converge. The graph
// is fixed. Encoded changes are added in ascending replica order.
#pragma once

#include <memory>
#include <vector>

#include "esp/sync/compress/strategy_compression.h"
#include "esp/sync/gossip/gossip_topology.h"
#include "esp/sync/timed_communicator.h"

namespace esp::sync {

class MoveLog {
 public:
  MoveLog(TimedCommunicator& replicas, const tensor::Context& context, StrategyCompression& compression, double step)
      : replicas_(replicas), context_(context), compression_(compression), step_(step) {}

  void begin(const std::vector<tensor::Tensor>& x);  // the current weights of every replica, by unit
  bool begun() const { return !units_.empty(); }
  void forget() { units_.clear(); }
  void mix(const MixingMatrix& mixing, size_t unit, const tensor::Tensor& x, int64_t event);
  std::vector<ExtraState> state();

 private:
  struct Unit {
    std::unique_ptr<OneDirectionalCompression> encoder;  // keeps x̂
    tensor::Tensor estimate_sum;                         // s
    tensor::Tensor code;
  };
  TimedCommunicator& replicas_;
  const tensor::Context context_;
  StrategyCompression& compression_;
  const double step_;
  std::vector<Unit> units_;
};

}  // namespace esp::sync
