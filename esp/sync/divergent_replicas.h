// DivergentReplicas: the interface of strategies whose replicas hold different weights between synchronisations (local
// SGD, gossip, DiLoCo).
//
// Gradients cover the tokens of this replica, or of its node. So the loss is scaled by that token count, the gradient
// norm is that of the replica, and the replica's optimizer updates all parameters. Evaluation (load_average) and
// checkpoints (Strategy::checkpoint_shards) use the mean of all replicas, so both calls are collective over the
// replicas. All calls come from one thread.
#pragma once

#include <string_view>
#include <vector>

#include "esp/comm/communicator.h"
#include "esp/optim/optimizer.h"
#include "esp/sync/extra_state.h"

namespace esp::sync {

// The ranks over which gradients are summed in a step.
struct ReductionScope {
  bool all_replicas = true;  // true: gradients are summed over all replicas
  // used if all_replicas is false: the ranks of the sum, for example a node; null: this replica only
  comm::Communicator* group = nullptr;
};

struct ReplicaMetric {
  std::string_view name;
  double value = 0;
};

class DivergentReplicas {
 public:
  virtual ~DivergentReplicas() = default;
  // Call after the optimizer is created. If it keeps fp32 master weights, the strategy averages the master weights.
  virtual void attach(optim::Optimizer& optimizer) = 0;
  virtual ReductionScope reduction_scope() const = 0;  // ranks over which the gradients of the next step are summed
  virtual void set_local_tokens(double tokens) = 0;    // token count of this replica in the next step

  // Replaces the weights of this replica by the mean of all replicas until `restore_own`.
  virtual void load_average() = 0;
  virtual void restore_own() = 0;

  virtual bool equal() const = 0;  // true: all replicas hold the same weights, so a checkpoint needs no extra state
  virtual std::vector<ExtraState> extra_state() = 0;
  // call after all replicas have loaded the same weights; `step` is the next step
  virtual void begin_at(int64_t step) = 0;
  // Resumes replicas whose weights may differ (`equal` is false). The caller then fills the tensors of extra_state().
  virtual void resume_at(int64_t step, bool equal) = 0;

  // Metrics measured since the last call. `consensus` is (1/n) Σ ‖x_i − x̄‖², measured before the latest average.
  virtual std::vector<ReplicaMetric> take_metrics() = 0;
};

// Calls load_average on construction and restore_own on destruction. Does nothing if `replicas` is null.
class ScopedAverageWeights {
 public:
  explicit ScopedAverageWeights(DivergentReplicas* replicas) : replicas_(replicas) {
    if (replicas_) replicas_->load_average();
  }
  ~ScopedAverageWeights() {
    if (replicas_) replicas_->restore_own();
  }
  ScopedAverageWeights(const ScopedAverageWeights&) = delete;
  ScopedAverageWeights& operator=(const ScopedAverageWeights&) = delete;

 private:
  DivergentReplicas* replicas_;
};

}  // namespace esp::sync
