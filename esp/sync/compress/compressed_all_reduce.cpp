#include "esp/sync/compress/compressed_all_reduce.h"

#include <fmt/format.h>

#include "esp/autograd/functions/weights.h"
#include "esp/base/error.h"
#include "esp/kernel/elementwise.h"
#include "esp/sync/bucket_queue.h"
#include "esp/sync/compress/arguments.h"
#include "esp/sync/compress/power_sgd.h"
#include "esp/sync/whole_copies.h"

namespace esp::sync {
namespace {

using tensor::Tensor;

constexpr std::string_view kPowerSgd = "powersgd";

bool is_power_sgd(std::string_view spec) {
  return spec.substr(0, spec.find(':')) == kPowerSgd;
}

int64_t rank_of(std::string_view spec) {
  Arguments arguments(kPowerSgd, spec.substr(kPowerSgd.size()), "[:RANK]");
  const int64_t rank = arguments.whole("the rank", 4, 1, 4096);
  arguments.finish();
  return rank;
}

class CompressedAllReduce final : public WholeCopies {
 public:
  explicit CompressedAllReduce(const Setup& setup)
      : WholeCopies(setup),
        compressor_(is_power_sgd(setup.options.compress) ? nullptr : make_compressor(setup.options.compress)),
        queue_(make_buckets(parameters_, to_bytes(setup.options.first_bucket_mb), to_bytes(setup.options.bucket_mb),
                            setup.storage),
               [this](size_t bucket) { ready_.push_back(bucket); }) {
    int64_t longest = 0;
    for (const Bucket& bucket : queue_.buckets()) {
      feedbacks_.push_back(feedback_for(bucket, feedbacks_.size()));
      longest = std::max(longest, bucket.count());
    }
    sum_ = tensor::empty(setup.context, {longest}, DType::f32, device::MemoryCategory::buffer);
    if (setup.storage != DType::f32)
      wide_ = tensor::empty(setup.context, {longest}, DType::f32, device::MemoryCategory::buffer);
  }

  void begin_pass(const Pass& pass) override {
    if (pass.training && pass.last) queue_.arm();
  }
  void end_pass() override {
    queue_.flush([this](nn::Parameter& p) { autograd::clear_if_stale(p.weight, setup_.context.stream); });
  }
  void finish() override {
    for (size_t index : ready_) exchange(index);
    ready_.clear();
  }
  void begin_step() override {
    WholeCopies::begin_step();
    exchanging_ms_ = 0;
  }
  StepTimes times() const override { return {ranks_.exposed_ms() + exchanging_ms_}; }

 private:
  static int64_t to_bytes(double mb) { return static_cast<int64_t>(mb * (1 << 20)); }

  std::unique_ptr<Feedback> feedback_for(const Bucket& bucket, size_t index) const {
    const uint64_t seed = setup_.options.seed + index * 0x9e3779b97f4a7c15u;  // buckets draw apart
    if (!compressor_) {
      PowerSgdSetup power{setup_.ranks,
                          setup_.context,
                          bucket.count(),
                          {},
                          rank_of(setup_.options.compress),
                          seed,
                          1.0,
                          setup_.options.deterministic};
      for (const nn::Parameter* p : bucket.parameters)
        if (p->shape.rank() == 2)
          power.parts.push_back({parameters_.units()[static_cast<size_t>(p->unit)].first + p->offset - bucket.begin,
                                 p->shape.dim(0), p->shape.dim(1)});
      return make_power_sgd(power);
    }
    const std::string objected = objection(*compressor_, setup_.options.feedback, bucket.count());
    if (!objected.empty())
      throw UsageError(fmt::format("sync.compress = \"{}\" with sync.feedback = \"{}\": {}", setup_.options.compress,
                                   setup_.options.feedback, objected));
    AggregationSetup sum{setup_.ranks, setup_.context, compressor_.get(),           bucket.count(),
                         DType::f32,   seed,           setup_.options.deterministic};
    return make_feedback(setup_.options.feedback, {sum, 1.0, {}});
  }

  void exchange(size_t index) {
    const auto begun = Clock::now();
    const Bucket& bucket = queue_.buckets()[index];
    const Tensor gradient = gradients(bucket.begin, bucket.end);
    const auto& stream = setup_.context.stream;
    const void* from = gradient.data();
    if (wide_.defined()) {
      kernel::cast(wide_.data(), DType::f32, from, gradient.dtype(), gradient.count(), stream);
      from = wide_.data();
    }
    feedbacks_[index]->exchange(sum_.data(), from);
    kernel::cast(gradient.data(), gradient.dtype(), sum_.data(), DType::f32, gradient.count(), stream);
    exchanging_ms_ += std::chrono::duration<double, std::milli>(Clock::now() - begun).count();
  }

  const std::unique_ptr<Compressor> compressor_;  // null: PowerSGD
  BucketQueue queue_;
  std::vector<std::unique_ptr<Feedback>> feedbacks_;  // by bucket
  std::vector<size_t> ready_;
  Tensor sum_, wide_;
  double exchanging_ms_ = 0;
};

}  // namespace

void check_compression(const Options& options) {
  if (options.compress == "none") {
    if (options.feedback != "none")
      throw UsageError(fmt::format("sync.feedback = \"{}\" is of compressed gradients: sync.compress is wanted with it",
                                   options.feedback));
    return;
  }
  if (options.method != "allreduce" || options.buckets != "fixed" || options.wire != "auto")
    throw UsageError(fmt::format(
        "sync.compress = \"{}\" goes with sync.method = \"allreduce\", sync.buckets = \"fixed\" and sync.wire = "
        "\"auto\"; these are {}, {} and {}",
        options.compress, options.method, options.buckets, options.wire));
  if (is_power_sgd(options.compress)) {
    rank_of(options.compress);
    if (options.feedback != "none" && options.feedback != "ef")
      throw UsageError("sync.compress = \"powersgd\" keeps its own errors: sync.feedback is none or ef with it");
    return;
  }
  make_compressor(options.compress);
  find_feedback(options.feedback);
}

std::unique_ptr<Strategy> make_compressed_all_reduce(const Setup& setup) {
  check_compression(setup.options);
  return std::make_unique<CompressedAllReduce>(setup);
}

}  // namespace esp::sync
