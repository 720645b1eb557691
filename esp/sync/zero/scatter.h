// Gradient buckets of ZeRO stages 2 and 3. A bucket is allocated with its first gradient and reduce-scattered when
// full. The result is added to this rank's shard, and the bucket is freed. Shards are stored here, or by a GradientSink
// off the device.
//
// A few buckets are in flight at a time: launching one more waits for the oldest, which bounds the memory. If
// micro-batches are accumulated locally, buckets stay allocated until the last micro-batch. Called only from the thread
// that runs backward.
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
    bool local = false;    // where micro-batches are accumulated: true: in the buckets; false: in the shards
    bool to_sink = false;  // true: the sink stores the shards
    size_t max_in_flight = 2;
  };
  // Sets on_ready and on_gradient of every parameter. `chunks` are the ranges of each bucket that this rank owns. The
  // shards are one tensor of memory category gradient.
  GradientScatter(std::vector<GradientBucket> buckets, const tensor::Context& context, std::vector<comm::Chunk> chunks,
                  std::unique_ptr<BucketScatter> scatter, const Options& options);

  const std::vector<GradientBucket>& buckets() const { return queue_.buckets(); }
  // The range of a bucket that this rank owns, and the tensor that holds its sum.
  comm::Chunk chunk(size_t bucket) const { return chunks_[bucket]; }
  tensor::Tensor shard(size_t bucket) const { return shards_[bucket]; }  // undefined if the sink stores the shards
  // The sink receives the sum of this rank's chunk of a bucket. add: adds it to the sums received before.
  using Sink = std::function<void(size_t bucket, const tensor::Tensor& sum, bool add)>;
  void set_sink(Sink sink) { sink_ = std::move(sink); }
  BucketScatter& bucket_scatter() const { return *scatter_; }
  double exposed_ms() const { return scatter_->exposed_ms(); }

  void begin_pass(const PassOptions& pass);
  void end_pass();
  void finish();

 private:
  void attach(size_t bucket);
  void launch(size_t bucket);
  void finish_bucket(size_t bucket);
  tensor::Tensor cast_to_storage(const tensor::Tensor& sum) const;

  const tensor::Context context_;
  const std::vector<comm::Chunk> chunks_;
  const std::unique_ptr<BucketScatter> scatter_;
  const Options options_;
  std::vector<tensor::Tensor> shards_, attached_;  // attached_: the buckets; undefined while not allocated
  std::vector<bool> has_gradient_;                 // [bucket]: its shard has received a sum in this step
  std::deque<size_t> in_flight_;
  Sink sink_;
  BucketQueue queue_;
  bool armed_ = false;
};

}  // namespace esp::sync
