// Gradient buckets of ZeRO stages 2 and 3: a bucket is allocated with its first gradient, reduce-scattered when full,
// added to this rank's shard, and freed. Shards are stored here or off the device (GradientSink).
//
// A few buckets are in flight at a time: launching one more waits for the oldest, which bounds the memory. Buckets are
// kept over micro-batches where the caller accumulates locally. One thread, the one that runs backward.
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
    bool local = false;    // accumulate micro-batches in the buckets; otherwise in the shard
    bool to_sink = false;  // the shards are stored in the sink
    size_t max_in_flight = 2;
  };
  // Sets on_ready and on_gradient of every parameter. `scatter` splits the buckets according to `chunks`. The shards
  // are one tensor of category gradient.
  GradientScatter(std::vector<Bucket> buckets, const tensor::Context& context, std::vector<comm::Chunk> chunks,
                  std::unique_ptr<BucketScatter> scatter, const Options& options);

  const std::vector<Bucket>& buckets() const { return queue_.buckets(); }
  // This rank's chunk of a bucket, and the destination of its sum.
  comm::Chunk chunk(size_t bucket) const { return chunks_[bucket]; }
  tensor::Tensor shard(size_t bucket) const { return shards_[bucket]; }  // undefined where the sink stores them
  // Receives ranges of a bucket's chunk: (bucket, sum of the chunk, whether to accumulate).
  using Sink = std::function<void(size_t bucket, const tensor::Tensor& sum, bool add)>;
  void set_sink(Sink sink) { sink_ = std::move(sink); }
  BucketScatter& over_ranks() const { return *scatter_; }
  double exposed_ms() const { return scatter_->exposed_ms(); }

  void begin_pass(const PassOptions& pass);
  void end_pass();
  void finish();

 private:
  void attach(size_t bucket);
  void launch(size_t bucket);
  void finish_bucket(size_t bucket);
  tensor::Tensor as_stored(const tensor::Tensor& sum) const;

  const tensor::Context context_;
  const std::vector<comm::Chunk> chunks_;
  const std::unique_ptr<BucketScatter> scatter_;
  const Options options_;
  std::vector<tensor::Tensor> shards_, attached_;  // attached_: undefined where a bucket is not allocated
  std::vector<bool> has_gradient_;                 // shards with a contribution in this step
  std::deque<size_t> in_flight_;
  Sink sink_;
  BucketQueue queue_;
  bool armed_ = false;
};

}  // namespace esp::sync
