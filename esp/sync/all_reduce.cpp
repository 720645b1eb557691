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
    use(make_buckets(parameters_, to_bytes(setup.options.first_bucket_mb), to_bytes(setup.options.bucket_mb),
                     setup.storage));
  }

  void begin_pass(const PassOptions& pass) override {
    if (pass.training && pass.last) queue_->arm();
  }
  void end_pass() override {
    queue_->flush([this](nn::Parameter& p) { autograd::clear_if_stale(p.weight, setup_.context.stream); });
  }
  void finish() override {
    for (Flight& flight : in_flight_) {
      ranks_.wait(flight.work, "gradients");
      unpack(flight);
    }
    in_flight_.clear();
  }
  void after_step() override {
    if (std::exchange(observing_, false)) follow_observed_order();
  }

 private:
  struct Flight {
    size_t bucket;
    Tensor travelling;
    Work work;
  };

  void use(std::vector<Bucket> buckets) {
    queue_ = std::make_unique<BucketQueue>(std::move(buckets), [this](size_t bucket) { launch(bucket); });
  }

  void launch(size_t index) {
    const Bucket& bucket = queue_->buckets()[index];
    Flight flight{index, {}, {}};
    if (packed_) {
      flight.travelling = tensor::empty(setup_.context, {bucket.count()}, wire_, device::MemoryCategory::buffer);
      each_part(bucket, flight.travelling, [&](const Tensor& grad, const Tensor& part) {
        kernel::cast(part.data(), wire_, grad.data(), grad.dtype(), part.count(), setup_.context.stream);
      });
    } else {
      const Tensor view = gradients(bucket.begin, bucket.end);
      flight.travelling = ranks_.size() > 1 ? to_wire(setup_.context, view, wire_) : view;
    }
    flight.work = ranks_.start_all_reduce(flight.travelling);
    in_flight_.push_back(std::move(flight));
  }

  void unpack(const Flight& flight) {
    const Bucket& bucket = queue_->buckets()[flight.bucket];
    if (!packed_) return from_wire(setup_.context, flight.travelling, gradients(bucket.begin, bucket.end));
    each_part(bucket, flight.travelling, [&](const Tensor& grad, const Tensor& part) {
      kernel::cast(grad.data(), grad.dtype(), part.data(), wire_, part.count(), setup_.context.stream);
    });
  }

  template <typename F>  // f(gradient, its slice of the packed bucket)
  void each_part(const Bucket& bucket, const Tensor& packed, F&& f) {
    int64_t at = 0;
    for (nn::Parameter* p : bucket.parameters) {
      f(p->weight.grad, packed.slice(at, at + p->count()));
      at += p->count();
    }
  }

  // Observed order: buckets follow the order in which gradients completed on rank 0. Such buckets are not contiguous in
  // the flat gradient buffer, so they are packed.
  void follow_observed_order() {
    std::vector<int32_t> order = queue_->observed();
    if (setup_.ranks) setup_.ranks->broadcast(order.data(), order.size(), DType::i32, 0);
    std::vector<int32_t> expected(order.size());
    for (size_t i = 0; i < expected.size(); ++i) expected[i] = static_cast<int32_t>(expected.size() - 1 - i);
    if (order == expected) return;  // already in this order
    use(make_buckets(parameters_, order, to_bytes(setup_.options.first_bucket_mb), to_bytes(setup_.options.bucket_mb),
                     setup_.storage));
    packed_ = true;
  }

  std::unique_ptr<BucketQueue> queue_;
  std::vector<Flight> in_flight_;
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
