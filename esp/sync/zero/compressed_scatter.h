// Compressed reduce-scatter of buckets: the first phase of a two-phase all-reduce, with error feedback of this rank
// over the whole bucket. Weights are gathered uncompressed. In f32 for any storage type.
#pragma once

#include "esp/sync/buckets.h"
#include "esp/sync/compress/exchange_thread.h"
#include "esp/sync/compress/strategy_compression.h"
#include "esp/sync/zero/bucket_scatters.h"

namespace esp::sync {

class CompressedScatter final : public BucketScatter {
 public:
  // `ranks` counts the wait time; it and the setup are borrowed.
  CompressedScatter(const Setup& setup, const std::vector<Bucket>& buckets, TimedCommunicator& ranks);
  void start(size_t bucket, const tensor::Tensor& all) override;
  tensor::Tensor finish(size_t bucket) override;
  std::vector<ExtraState> extra_state() override { return extra_state_of(exchanges_); }
  std::vector<std::string> take_notes() override { return compression_.take_notes(); }
  std::vector<NamedGroup> groups() const override;

 private:
  struct Flight {
    tensor::Tensor all, sum;
    Work work;
  };
  TimedCommunicator& ranks_;
  const tensor::Context context_;
  StrategyCompression compression_;
  tensor::Tensor wide_;  // the bucket in flight, where gradients are stored in another type
  std::vector<Flight> flights_;
  std::vector<std::unique_ptr<Feedback>> exchanges_;  // by bucket
  ExchangeThread executor_;                           // last member: ends before the objects it uses
};

// As configured: plain or compressed.
std::unique_ptr<BucketScatter> make_bucket_scatter(const Setup& setup, const std::vector<Bucket>& buckets,
                                                   ShardGroup& group, DType wire);

}  // namespace esp::sync
