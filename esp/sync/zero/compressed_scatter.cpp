#include "esp/sync/zero/compressed_scatter.h"

#include <algorithm>

#include "esp/kernel/elementwise.h"

namespace esp::sync {

using device::MemoryCategory;
using tensor::Tensor;

CompressedScatter::CompressedScatter(const Setup& setup, const std::vector<GradientBucket>& buckets,
                                     TimedCommunicator& ranks)
    : ranks_(ranks),
      context_(setup.context),
      compression_(setup),
      pending_(buckets.size()),
      executor_(setup.ranks, setup.context) {
  int64_t longest = 0;
  for (const GradientBucket& bucket : buckets) {
    exchanges_.push_back(
        compression_.scattered({bucket.begin, bucket.end, exchanges_.size()}, executor_.ranks(), executor_.context()));
    longest = std::max(longest, bucket.count());
  }
  if (setup.storage != DType::f32) wide_ = tensor::empty(context_, {longest}, DType::f32, MemoryCategory::buffer);
}

void CompressedScatter::start(size_t bucket, const Tensor& all) {
  PendingExchange& pending = pending_[bucket];
  pending.all = all;
  pending.sum = tensor::empty(context_, {static_cast<int64_t>(ranks_.chunk(all.count()).count)}, DType::f32,
                              MemoryCategory::buffer);
  pending.work = executor_.start([this, bucket, from = all, to = pending.sum] {
    const void* x = from.data();
    if (wide_.defined()) {
      kernel::cast(wide_.data(), DType::f32, x, from.dtype(), from.count(), executor_.context().stream);
      x = wide_.data();
    }
    exchanges_[bucket]->exchange(to.data(), x);
  });
}

Tensor CompressedScatter::finish(size_t bucket) {
  ranks_.wait(pending_[bucket].work, "gradients");
  const Tensor sum = pending_[bucket].sum;
  pending_[bucket] = {};
  return sum;
}

std::vector<NamedGroup> CompressedScatter::groups() const {
  return executor_.ranks() ? std::vector<NamedGroup>{{"compressed", executor_.ranks()}} : std::vector<NamedGroup>();
}

std::unique_ptr<BucketScatter> make_bucket_scatter(const Setup& setup, const std::vector<GradientBucket>& buckets,
                                                   ShardGroup& group, DType wire) {
  if (setup.options.compress != "none") return std::make_unique<CompressedScatter>(setup, buckets, group.intra_group());
  return std::make_unique<PlainScatter>(group, setup.context, buckets.size(), wire);
}

}  // namespace esp::sync
