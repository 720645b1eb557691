#include "esp/sync/compress/compressed_all_reduce.h"

#include "esp/autograd/functions/weights.h"
#include "esp/kernel/elementwise.h"
#include "esp/sync/bucket_queue.h"
#include "esp/sync/compress/exchange_thread.h"
#include "esp/sync/compress/one_bit_adam.h"
#include "esp/sync/compress/strategy_compression.h"
#include "esp/sync/replicated_strategy.h"

namespace esp::sync {
namespace {

using tensor::Tensor;

class CompressedAllReduce final : public ReplicatedStrategy {
 public:
  explicit CompressedAllReduce(const Setup& setup)
      : ReplicatedStrategy(setup),
        compression_(setup),
        queue_(make_gradient_buckets(parameters_, to_bytes(setup.options.first_bucket_mb),
                                     to_bytes(setup.options.bucket_mb), setup.storage),
               [this](size_t bucket) { in_flight_.push_back(executor_.start([this, bucket] { exchange(bucket); })); }),
        executor_(setup.ranks, setup.context) {
    int64_t longest = 0;
    for (const GradientBucket& bucket : queue_.buckets()) {
      exchanges_.push_back(
          compression_.summed({bucket.begin, bucket.end, exchanges_.size()}, executor_.ranks(), executor_.context()));
      longest = std::max(longest, bucket.count());
    }
    const auto made = [&] {
      return tensor::empty(setup.context, {longest}, DType::f32, device::MemoryCategory::buffer);
    };
    sum_ = made();
    if (setup.storage != DType::f32) wide_ = made();
  }

  void begin_pass(const PassOptions& pass) override {
    if (pass.training && pass.last) queue_.arm();
  }
  void end_pass() override {
    queue_.flush([this](nn::Parameter& p) { autograd::clear_if_stale(p.weight, setup_.context.stream); });
  }
  void finish() override {
    for (const Work& work : in_flight_) ranks_.wait(work, "gradients");
    in_flight_.clear();
  }
  std::vector<ExtraState> extra_state() override { return extra_state_of(exchanges_); }
  std::vector<std::string> take_notes() override { return compression_.take_notes(); }
  std::vector<NamedGroup> groups() const override {
    return executor_.ranks() ? std::vector<NamedGroup>{{"compressed", executor_.ranks()}} : std::vector<NamedGroup>();
  }

 private:
  static int64_t to_bytes(double mb) { return static_cast<int64_t>(mb * (1 << 20)); }

  // Runs on the exchange thread, one bucket at a time.
  void exchange(size_t index) {
    const GradientBucket& bucket = queue_.buckets()[index];
    const Tensor gradient = gradients(bucket.begin, bucket.end);
    const auto& stream = executor_.context().stream;
    const void* from = gradient.data();
    if (wide_.defined()) {
      kernel::cast(wide_.data(), DType::f32, from, gradient.dtype(), gradient.count(), stream);
      from = wide_.data();
    }
    exchanges_[index]->exchange(sum_.data(), from);
    kernel::cast(gradient.data(), gradient.dtype(), sum_.data(), DType::f32, gradient.count(), stream);
  }

  StrategyCompression compression_;
  BucketQueue queue_;
  std::vector<Work> in_flight_;
  Tensor sum_, wide_;
  std::vector<std::unique_ptr<Feedback>> exchanges_;  // one error feedback per gradient bucket
  ExchangeThread executor_;                           // last member: ends before the objects it uses
};

}  // namespace

std::unique_ptr<Strategy> make_compressed_all_reduce(const Setup& setup) {
  check_compression(setup.options);
  if (is_one_bit_adam(setup.options.feedback)) return make_one_bit_adam(setup);
  return std::make_unique<CompressedAllReduce>(setup);
}

}  // namespace esp::sync
