// Compressed reduce-scatter of gradient buckets: the first phase of a two-phase all-reduce. Each rank keeps the
// residual of the whole bucket. Works in f32 for any storage type. Weights are gathered uncompressed.
#pragma once

#include "esp/sync/buckets.h"
#include "esp/sync/compress/exchange_thread.h"
#include "esp/sync/compress/strategy_compression.h"
#include "esp/sync/zero/bucket_scatters.h"

namespace esp::sync {

class CompressedScatter final : public BucketScatter {
 public:
  // `ranks` counts the wait time. `ranks` and the objects in the setup are not owned.
  CompressedScatter(const Setup& setup, const std::vector<GradientBucket>& buckets, TimedCommunicator& ranks);
  void start(size_t bucket, const tensor::Tensor& all) override;
  tensor::Tensor finish(size_t bucket) override;
  std::vector<ExtraState> extra_state() override { return extra_state_of(exchanges_); }
  std::vector<std::string> take_notes() override { return compression_.take_notes(); }
  std::vector<NamedGroup> groups() const override;

 private:
  struct PendingExchange {
    tensor::Tensor all, sum;
    Work work;
  };
  TimedCommunicator& ranks_;
  const tensor::Context context_;
  StrategyCompression compression_;
  tensor::Tensor wide_;  // f32 copy of the bucket in flight, if gradients have another storage type
  std::vector<PendingExchange> pending_;
  std::vector<std::unique_ptr<Feedback>> exchanges_;  // one error feedback per bucket
  ExchangeThread executor_;                           // last member: its thread ends before the objects that it uses
};

// Creates a plain or compressed scatter, as the setup configures.
std::unique_ptr<BucketScatter> make_bucket_scatter(const Setup& setup, const std::vector<GradientBucket>& buckets,
                                                   ShardGroup& group, DType wire);

}  // namespace esp::sync
