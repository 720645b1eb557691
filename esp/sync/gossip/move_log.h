// Compressed gossip (CHOCO-SGD, Koloskova et al. 2019): each replica sends its compressed change since its last
// message, and its neighbours add up these changes.
//
//   q_i = C(x_i − x̂_i);  x̂_i += q_i;  s_i += Σ_j w_ij·q_j;  x_i += γ·(s_i − x̂_i)
//
// x̂_i is the estimate that the neighbours have of replica i. s_i is the weighted sum of the estimates of i and its
// neighbours. So a replica stores two vectors for any number of neighbours; both start at the common initial weights.
// The mean of all replicas is preserved (W is doubly stochastic). As replicas converge, changes and compression errors
// vanish. The graph must be fixed. Encoded changes are added in ascending replica order.
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

  // Starts from the current weights, one tensor per unit, which must be equal on all replicas.
  void begin(const std::vector<tensor::Tensor>& x);
  bool is_initialised() const { return !units_.empty(); }
  void reset() { units_.clear(); }
  void mix(const MixingMatrix& mixing, size_t unit, const tensor::Tensor& x, int64_t event);
  std::vector<ExtraState> state();

 private:
  struct Unit {
    std::unique_ptr<OneDirectionalCompression> encoder;  // stores x̂
    tensor::Tensor estimate_sum;                         // s of the formulas above: the weighted sum of the estimates
    tensor::Tensor code;                                 // this replica's encoded change
  };
  TimedCommunicator& replicas_;
  const tensor::Context context_;
  StrategyCompression& compression_;
  const double step_;
  std::vector<Unit> units_;
};

}  // namespace esp::sync
