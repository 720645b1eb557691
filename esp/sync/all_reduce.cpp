#include "esp/sync/all_reduce.h"

#include "esp/autograd/functions/weights.h"
#include "esp/base/error.h"
#include "esp/base/table.h"
#include "esp/kernel/elementwise.h"
#include "esp/sync/bucket_queue.h"
#include "esp/sync/compress/compressed_all_reduce.h"
#include "esp/sync/fusion.h"
#include "esp/sync/replicated_strategy.h"
#include "esp/sync/wire.h"

namespace esp::sync {
namespace {

using tensor::Tensor;

int64_t to_bytes(double mb) {
  return static_cast<int64_t>(mb * (1 << 20));
}

class AllReduce final : public ReplicatedStrategy {
 public:
  explicit AllReduce(const Setup& setup) : ReplicatedStrategy(setup), observing_(setup.options.buckets == "observed") {
    set_buckets(make_gradient_buckets(parameters_, to_bytes(setup.options.first_bucket_mb),
                                      to_bytes(setup.options.bucket_mb), setup.storage));
  }

  void begin_pass(const PassOptions& pass) override {
    if (pass.training && pass.last) queue_->arm();
  }
  void end_pass() override {
    queue_->flush([this](nn::Parameter& p) { autograd::clear_if_stale(p.weight, setup_.context.stream); });
  }
  void finish() override {
    for (PendingBucket& pending : in_flight_) {
      ranks_.wait(pending.work, "gradients");
      unpack(pending);
    }
    in_flight_.clear();
  }
  void after_step() override {
    if (std::exchange(observing_, false)) follow_observed_order();
  }

 private:
  struct PendingBucket {
    size_t bucket;
    Tensor wire_data;
    Work work;
  };

  void set_buckets(std::vector<GradientBucket> buckets) {
    queue_ = std::make_unique<BucketQueue>(std::move(buckets), [this](size_t bucket) { launch(bucket); });
  }

  void launch(size_t index) {
    const GradientBucket& bucket = queue_->buckets()[index];
    PendingBucket pending{index, {}, {}};
    if (packed_) {
      pending.wire_data = tensor::empty(setup_.context, {bucket.count()}, wire_, device::MemoryCategory::buffer);
      each_part(bucket, pending.wire_data, [&](const Tensor& grad, const Tensor& part) {
        kernel::cast(part.data(), wire_, grad.data(), grad.dtype(), part.count(), setup_.context.stream);
      });
    } else {
      const Tensor view = gradients(bucket.begin, bucket.end);
      pending.wire_data = ranks_.size() > 1 ? to_wire(setup_.context, view, wire_) : view;
    }
    pending.work = ranks_.start_all_reduce(pending.wire_data);
    in_flight_.push_back(std::move(pending));
  }

  void unpack(const PendingBucket& pending) {
    const GradientBucket& bucket = queue_->buckets()[pending.bucket];
    if (!packed_) return from_wire(setup_.context, pending.wire_data, gradients(bucket.begin, bucket.end));
    each_part(bucket, pending.wire_data, [&](const Tensor& grad, const Tensor& part) {
      kernel::cast(grad.data(), grad.dtype(), part.data(), wire_, part.count(), setup_.context.stream);
    });
  }

  // calls f(gradient, its range of the packed bucket) for each parameter of the bucket
  template <typename F>
  void each_part(const GradientBucket& bucket, const Tensor& packed, F&& f) {
    int64_t at = 0;
    for (nn::Parameter* p : bucket.parameters) {
      f(p->weight.grad, packed.slice(at, at + p->count()));
      at += p->count();
    }
  }

  // Observed order: buckets follow the order in which gradients completed on rank 0. Such buckets are not contiguous in
  // the flat gradient buffer, so they are packed.
  void follow_observed_order() {
    std::vector<int32_t> order = queue_->completion_order();
    if (setup_.ranks) setup_.ranks->broadcast(order.data(), order.size(), DType::i32, 0);
    std::vector<int32_t> expected(order.size());
    for (size_t i = 0; i < expected.size(); ++i) expected[i] = static_cast<int32_t>(expected.size() - 1 - i);
    if (order == expected) return;  // the buckets already follow this order
    set_buckets(make_gradient_buckets(parameters_, order, to_bytes(setup_.options.first_bucket_mb),
                                      to_bytes(setup_.options.bucket_mb), setup_.storage));
    packed_ = true;
  }

  std::unique_ptr<BucketQueue> queue_;
  std::vector<PendingBucket> in_flight_;
  bool observing_, packed_ = false;
};

struct BucketOrder {
  std::string_view name;
};
constexpr BucketOrder kBucketOrders[] = {{"fixed"}, {"observed"}, {"cycle"}};

}  // namespace

std::unique_ptr<ReplicatedStrategy> make_bucketed(const Setup& setup) {
  return std::make_unique<AllReduce>(setup);
}

std::unique_ptr<Strategy> make_all_reduce(const Setup& setup) {
  if (setup.options.accumulate == "reduced")
    throw UsageError(
        "sync.accumulate: got reduced; method allreduce supports auto and local (micro-batches are summed before the "
        "all-reduce). Use sync.method = \"zero2\" or \"zero3\" to reduce every micro-batch.");
  if (setup.options.compress != "none") return make_compressed_all_reduce(setup);
  if (find_row("sync.buckets", kBucketOrders, setup.options.buckets).name == "cycle") return make_fusion(setup);
  return std::make_unique<AllReduce>(setup);
}

}  // namespace esp::sync
