#include "esp/sync/zero/scatter.h"

#include <algorithm>

#include "esp/autograd/functions/weights.h"
#include "esp/kernel/elementwise.h"

namespace esp::sync {

using device::MemoryCategory;
using tensor::Tensor;

GradientScatter::GradientScatter(std::vector<GradientBucket> buckets, const tensor::Context& context,
                                 std::vector<comm::Chunk> chunks, std::unique_ptr<BucketScatter> scatter,
                                 const Options& options)
    : context_(context),
      chunks_(std::move(chunks)),
      scatter_(std::move(scatter)),
      options_(options),
      shards_(buckets.size()),
      attached_(buckets.size()),
      has_gradient_(buckets.size()),
      queue_(std::move(buckets), [this](size_t bucket) { launch(bucket); }) {
  int64_t total = 0;
  for (const comm::Chunk& chunk : chunks_) total += static_cast<int64_t>(chunk.count);
  const Tensor all =
      options.to_sink ? Tensor() : tensor::zeros(context, {total}, options.storage, MemoryCategory::gradient);
  int64_t at = 0;
  for (size_t b = 0; b < this->buckets().size(); ++b) {
    const auto count = static_cast<int64_t>(chunk(b).count);
    if (all.defined()) shards_[b] = all.slice(at, at + count);
    at += count;
    for (nn::Parameter* p : this->buckets()[b].parameters) {
      p->weight.trained = true;
      p->weight.on_gradient = [this, b] {
        if (!attached_[b].defined()) attach(b);
      };
    }
  }
}

void GradientScatter::begin_pass(const PassOptions& pass) {
  armed_ = pass.training && (pass.last || !options_.local);
  if (armed_) queue_.arm();
}

void GradientScatter::attach(size_t b) {
  const GradientBucket& bucket = buckets()[b];
  attached_[b] = tensor::empty(context_, {bucket.count()}, options_.storage, MemoryCategory::buffer);
  int64_t end = bucket.count();
  // gradients become views of the bucket, which holds the parameters in reverse order
  for (nn::Parameter* p : bucket.parameters) {
    p->weight.grad = attached_[b].slice(end - p->count(), end).reshape(p->shape);
    p->weight.stale = true;
    end -= p->count();
  }
}

void GradientScatter::launch(size_t b) {
  // The same bucket may still be in flight from the previous micro-batch.
  while (in_flight_.size() >= options_.max_in_flight || std::count(in_flight_.begin(), in_flight_.end(), b) > 0) {
    finish_bucket(in_flight_.front());
    in_flight_.pop_front();
  }
  scatter_->start(b, attached_[b]);
  for (nn::Parameter* p : buckets()[b].parameters) p->weight.grad = {};
  attached_[b] = {};
  in_flight_.push_back(b);
}

Tensor GradientScatter::cast_to_storage(const Tensor& sum) const {
  return sum.dtype() == options_.storage ? sum
                                         : tensor::cast_to(context_, sum, options_.storage, MemoryCategory::buffer);
}

void GradientScatter::finish_bucket(size_t b) {
  const Tensor sum = scatter_->finish(b), &shard = shards_[b];
  const bool add = has_gradient_[b];
  has_gradient_[b] = true;
  if (options_.to_sink) {
    sink_(b, cast_to_storage(sum), add);
  } else if (!add) {
    kernel::cast(shard.data(), shard.dtype(), sum.data(), sum.dtype(), shard.count(), context_.stream);
  } else {
    const Tensor term = cast_to_storage(sum);
    kernel::add_to(shard.data(), term.data(), shard.count(), shard.dtype(), context_.stream);
  }
}

void GradientScatter::end_pass() {
  if (!armed_) return;
  armed_ = false;
  queue_.flush([this](nn::Parameter& p) {  // writes zeros for a parameter without a gradient
    p.weight.gradient();
    autograd::clear_if_stale(p.weight, context_.stream);
  });
}

void GradientScatter::finish() {
  for (size_t bucket : in_flight_) finish_bucket(bucket);
  in_flight_.clear();
  has_gradient_.assign(has_gradient_.size(), false);
}

}  // namespace esp::sync
