// Gradient buckets that come and go: memory from a bucket's first gradient, a reduce-scatter once it is full, this
// rank's chunk added to its shard, and the memory back. What stages 2 and 3 do with gradients. Shards lie here, or
// beyond the device (GradientSink).
//
// A few buckets travel at a time: launching one more waits for the oldest, which bounds the memory. Kept over
// micro-batches where the caller wants them added up locally. One thread, the one that runs backward.
#pragma once

#include <deque>
#include <vector>

#include "esp/sync/bucket_queue.h"
#include "esp/sync/zero/bucket_scatters.h"

namespace esp::sync {

class GradientScatter {
 public:
  struct Options {
    DType storage = DType::f32;
    bool local = false;  // add up micro-batches in the buckets; otherwise in the shard
    bool leave = false;  // the shards lie in the sink
    size_t most_in_flight = 2;
  };
  // Sets on_ready and on_gradient of every parameter. `scatter` cuts the buckets into chunks as `chunks` says. The
  // shards are one tensor of category gradient.
  GradientScatter(std::vector<Bucket> buckets, const tensor::Context& context, std::vector<comm::Chunk> chunks,
                  std::unique_ptr<BucketScatter> scatter, const Options& options);

  const std::vector<Bucket>& buckets() const { return queue_.buckets(); }
  // This rank's chunk of a bucket, and where its sum will lie.
  comm::Chunk chunk(size_t bucket) const { return chunks_[bucket]; }
  tensor::Tensor shard(size_t bucket) const { return shards_[bucket]; }  // undefined where they leave
  // Takes element runs of a bucket's chunk: (bucket, sum of the chunk, whether to add to what it holds).
  using Sink = std::function<void(size_t bucket, const tensor::Tensor& sum, bool add)>;
  void set_sink(Sink sink) { sink_ = std::move(sink); }
  BucketScatter& over_ranks() const { return *scatter_; }
  double exposed_ms() const { return scatter_->exposed_ms(); }

  void begin_pass(const Pass& pass);
  void end_pass();
  void finish();

 private:
  void attach(size_t bucket);
  void launch(size_t bucket);
  void land(size_t bucket);
  tensor::Tensor as_stored(const tensor::Tensor& sum) const;

  const tensor::Context context_;
  const std::vector<comm::Chunk> chunks_;
  const std::unique_ptr<BucketScatter> scatter_;
  const Options options_;
  std::vector<tensor::Tensor> shards_, attached_;  // attached_: undefined where a bucket has no memory now
  std::vector<bool> landed_;                       // shards that hold something of this step
  std::deque<size_t> in_flight_;
  Sink sink_;
  BucketQueue queue_;
  bool armed_ = false;
};

}  // namespace esp::sync
