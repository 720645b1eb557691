// Models what the synchronisation strategies (esp/sync) allocate and free during a pass: gradient buckets, and gathered
// units of weights.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "esp/plan/dry_run/tape.h"

namespace esp::plan::dry_run {

// Element counts of the gradient buckets and of the units of weights.
struct BucketSizes {
  std::vector<int64_t> bucket_counts, unit_counts;
  std::vector<int> weights_per_bucket;  // number of parameters in each bucket
  int64_t element_bytes = 4;
};

// ZeRO 2. A bucket is allocated at its first gradient and freed when its reduce-scatter has finished. At most
// `max_in_flight` reduce-scatters run at the same time.
class Zero2Hooks : public StrategyHooks {
 public:
  Zero2Hooks(DryRunRecorder& recorder, const BucketSizes& bucket_sizes, size_t max_in_flight, bool accumulate_locally);
  void gradient(DryRunWeight& weight) override;
  void ready(DryRunWeight& weight) override;
  void begin_pass() override;
  void end_pass() override;
  void finish() override { in_flight_.clear(); }
  bool last_pass = true;  // true in the last micro-batch of the step, which sends the locally accumulated gradients

 protected:
  DryRunRecorder& recorder_;
  const BucketSizes& bucket_sizes_;
  static constexpr parallel::MeshAxis kAxis = parallel::MeshAxis::replicas;

 private:
  void start_scatter(size_t bucket);
  struct ScatterInFlight {
    size_t bucket;
    BufferHandle all;
  };
  const size_t max_in_flight_;
  const bool accumulate_locally_;
  std::vector<BufferHandle> buffers_;
  std::vector<int> num_missing_;
  std::deque<ScatterInFlight> in_flight_;
  size_t next_bucket_ = 0;
  bool scattering_ = false;
};

// Sequence parallelism: some gradients are partial sums and must be all-reduced over the tensor group. One call reduces
// all partial gradients of a unit; they become ready after it.
class PartialSumHooks final : public StrategyHooks {
 public:
  PartialSumHooks(DryRunRecorder& recorder, std::unique_ptr<StrategyHooks> of, std::vector<int> num_partial_by_unit,
                  int64_t element_bytes)
      : recorder_(recorder),
        inner_(std::move(of)),
        num_partial_(std::move(num_partial_by_unit)),
        element_bytes_(element_bytes),
        arrived_(num_partial_.size()) {}
  void use(DryRunWeight& weight) override { inner_->use(weight); }
  void gradient(DryRunWeight& weight) override { inner_->gradient(weight); }
  void ready(DryRunWeight& weight) override;
  void begin_pass() override { inner_->begin_pass(); }
  void begin_backward() override { inner_->begin_backward(); }
  void end_pass() override { inner_->end_pass(); }
  void finish() override { inner_->finish(); }
  bool sends_gradients = true;  // false: this pass only accumulates gradients locally

 private:
  DryRunRecorder& recorder_;
  const std::unique_ptr<StrategyHooks> inner_;
  const std::vector<int> num_partial_;  // number of partial gradients in each unit
  const int64_t element_bytes_;
  std::vector<std::vector<DryRunWeight*>> arrived_;
};

// ZeRO 3. In addition to the buckets of ZeRO 2, gathered units of weights are allocated: the current unit and
// prefetched ones. The prefetch order is the order of uses that the first pass recorded.
class Zero3Hooks final : public Zero2Hooks {
 public:
  Zero3Hooks(DryRunRecorder& recorder, const BucketSizes& bucket_sizes, size_t max_in_flight, bool accumulate_locally,
             int64_t prefetch, bool keep);
  void use(DryRunWeight& weight) override;
  void begin_pass() override;
  void begin_backward() override;
  void end_pass() override;

 private:
  static constexpr size_t kNoUnit = static_cast<size_t>(-1);
  void note(size_t unit);
  void update_upcoming();
  void gather(size_t unit);
  bool used_soon(size_t unit) const;

  const int64_t prefetch_;
  const bool keep_;
  std::vector<BufferHandle> gathered_;
  std::vector<size_t> order_, upcoming_;
  size_t num_forward_uses_ = kNoUnit, next_use_ = 0, current_ = kNoUnit;
  bool order_known_ = false, in_backward_ = false;
};

}  // namespace esp::plan::dry_run
