// Gradient buckets that come and go: memory from a bucket's first gradient, a reduce-scatter once it is full, this
// rank's chunk added to its shard, and the memory back. What stages 2 and 3 do with gradients.
//
// A few buckets travel at a time: launching one more waits for the oldest, which bounds the memory. Kept over
// micro-batches where the caller wants them added up locally. One thread, the one that runs backward.
#pragma once

#include <deque>
#include <vector>

#include "esp/sync/bucket_queue.h"
#include "esp/sync/zero/shard_group.h"

namespace esp::sync {

class GradientScatter {
 public:
  struct Options {
    DType storage = DType::f32, wire = DType::f32;
    bool local = false;  // add up micro-batches in the buckets; otherwise in the shard
    size_t most_in_flight = 2;
  };
  // Sets on_ready and on_gradient of every parameter. The shards are one tensor of category gradient.
  GradientScatter(nn::ParameterList& parameters, std::vector<Bucket> buckets, const tensor::Context& context,
                  ShardGroup& group, const Options& options);

  const std::vector<Bucket>& buckets() const { return queue_.buckets(); }
  // This rank's chunk of a bucket, and where its sum will lie.
  comm::Chunk chunk(size_t bucket) const { return group_.inside().chunk(buckets()[bucket].count()); }
  tensor::Tensor shard(size_t bucket) const { return shards_[bucket]; }

  void begin_pass(const Pass& pass);
  void end_pass();
  void finish();

 private:
  struct Flight {
    size_t bucket;
    tensor::Tensor travelling;
    Work work;
  };
  void attach(size_t bucket);
  void launch(size_t bucket);
  void land(Flight& flight);

  const tensor::Context context_;
  ShardGroup& group_;
  const Options options_;
  std::vector<tensor::Tensor> shards_, attached_;  // attached_: undefined where a bucket has no memory now
  std::vector<bool> landed_;                       // shards that hold something of this step
  std::deque<Flight> in_flight_;
  BucketQueue queue_;
  bool armed_ = false;
};

}  // namespace esp::sync
