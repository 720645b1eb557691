// DivergentReplicas: implemented by strategies whose replicas hold different weights between synchronisations (local
// SGD, gossip, DiLoCo).
//
// Gradients cover the tokens of this replica, or of its node: the loss is scaled by their count, the gradient norm is
// that of the replica, and its optimizer updates all parameters. Evaluation (load_average) and checkpoints
// (Strategy::held) use the mean of all replicas, so both calls are collective over the replicas. One thread.
#pragma once

#include <string_view>
#include <vector>

#include "esp/comm/communicator.h"
#include "esp/optim/optimizer.h"
#include "esp/sync/extra_state.h"

namespace esp::sync {

// The ranks over which gradients are summed in a step.
struct ReductionScope {
  bool all = true;                     // all replicas
  comm::Communicator* some = nullptr;  // otherwise this group, a node; null: this replica only
};

struct ReplicaMetric {
  std::string_view name;
  double value = 0;
};

class DivergentReplicas {
 public:
  virtual ~DivergentReplicas() = default;
  // Called once the optimizer exists: where it keeps fp32 master weights, those are averaged.
  virtual void attach(optim::Optimizer& optimizer) = 0;
  virtual ReductionScope reduction_scope() const = 0;  // of the next step
  virtual void set_local_tokens(double tokens) = 0;    // of this replica, in the step about to begin

  // Replaces the weights of this replica by the mean of all replicas until `restore_own`.
  virtual void load_average() = 0;
  virtual void restore_own() = 0;

  virtual bool equal() const = 0;  // all replicas hold the same weights: no extra state is needed
  virtual std::vector<ExtraState> extra_state() = 0;
  virtual void begin_at(int64_t step) = 0;  // all replicas were loaded with the same weights
  // Resumes divergent replicas: the tensors of extra_state() are filled in afterwards.
  virtual void resume_at(int64_t step, bool equal) = 0;

  // Metrics since the last call: `consensus` is (1/n) Σ ‖x_i − x̄‖² before the latest average.
  virtual std::vector<ReplicaMetric> take_metrics() = 0;
};

// Holds the mean of all replicas in place for its lifetime. Does nothing where `replicas` is null.
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
