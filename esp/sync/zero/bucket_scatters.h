// Reduce-scatter of gradient buckets. PlainScatter sends values in the wire type; if there are several shard groups, it
// then all-reduces the chunk across the groups. NodeScatter uses the two quantised all-to-alls of ZeRO++ (qgZ).
#pragma once

#include <deque>
#include <vector>

#include "esp/sync/quantised/reduce_scatter.h"
#include "esp/sync/zero/shard_group.h"

namespace esp::sync {

class BucketScatter {
 public:
  virtual ~BucketScatter() = default;
  virtual void start(size_t bucket, const tensor::Tensor& all) = 0;
  // Waits for the reduce-scatter and returns this rank's chunk of the sum. The chunk may alias the tensor `all` that
  // was passed to start().
  virtual tensor::Tensor finish(size_t bucket) = 0;
  virtual double exposed_ms() const { return 0; }  // wait time that TimedCommunicator does not count
  // See Strategy::extra_state.
  virtual std::vector<ExtraState> extra_state() { return {}; }
  virtual std::vector<std::string> take_notes() { return {}; }
  virtual std::vector<NamedGroup> groups() const { return {}; }
};

class PlainScatter final : public BucketScatter {
 public:
  PlainScatter(ShardGroup& group, const tensor::Context& context, size_t num_buckets, DType wire)
      : group_(group), context_(context), wire_(wire), pending_(num_buckets) {}
  void start(size_t bucket, const tensor::Tensor& all) override;
  tensor::Tensor finish(size_t bucket) override;

 private:
  struct PendingScatter {
    tensor::Tensor wire_data;
    Work work;
  };
  ShardGroup& group_;
  const tensor::Context context_;
  const DType wire_;
  std::vector<PendingScatter> pending_;
};

class NodeScatter final : public BucketScatter {
 public:
  NodeScatter(const NodeGrid& nodes, const tensor::Context& context, const std::vector<int64_t>& counts, DType storage,
              const Encoding& encoding, Duration timeout);
  void start(size_t bucket, const tensor::Tensor& all) override;
  tensor::Tensor finish(size_t bucket) override;
  double exposed_ms() const override;

 private:
  const tensor::Context context_;
  const DType storage_;
  const Duration timeout_;
  std::deque<QuantisedScatter> scatters_;
  std::vector<int64_t> chunk_counts_;
};

}  // namespace esp::sync
