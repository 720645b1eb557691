#include "esp/sync/all_reduce.h"

#include "esp/autograd/functions/weights.h"
#include "esp/base/error.h"
#include "esp/sync/bucket_queue.h"
#include "esp/sync/norm.h"
#include "esp/sync/ranks.h"
#include "esp/sync/wire.h"

namespace esp::sync {
namespace {

using tensor::Tensor;

class AllReduce final : public Strategy {
 public:
  explicit AllReduce(const Setup& setup)
      : setup_(setup),
        parameters_(*setup.parameters),
        ranks_(setup.ranks, {setup.options.deterministic, setup.timeout, setup.trace}),
        wire_(wire_type(setup.options.wire, setup.storage)),
        gradients_(materialize()),
        queue_(make_buckets(parameters_, to_bytes(setup.options.first_bucket_mb), to_bytes(setup.options.bucket_mb),
                            setup.storage),
               [this](size_t bucket) { launch(bucket); }),
        norm_(parameters_, setup.context, optim::everything(parameters_), {}, setup.storage,
              setup.options.deterministic) {}

  void fill(const std::function<void(nn::ParameterList::Unit&)>& f) override {
    for (auto& unit : parameters_.units()) f(unit);
  }
  std::vector<optim::Owned> owned() override { return optim::everything(parameters_); }
  std::vector<optim::Held> held() override {
    std::vector<optim::Held> all;
    if (ranks_.rank() == 0)
      for (const optim::Owned& one : owned()) all.push_back({one.range, one.values});
    return all;
  }

  void begin_step() override {
    ranks_.forget_times();
    parameters_.forget_gradients(setup_.context.stream);
  }
  void begin_pass(const Pass& pass) override {
    if (pass.training && pass.last) queue_.arm();
  }
  void end_pass() override {
    queue_.flush([this](nn::Parameter& p) { autograd::clear_if_stale(p.weight, setup_.context.stream); });
  }
  void finish() override {
    for (Flight& flight : in_flight_) {
      ranks_.wait(flight.work, "gradients");
      from_wire(setup_.context, flight.travelling, flight.bucket);
    }
    in_flight_.clear();
  }
  double sum_of_squares() override { return norm_.sum(ranks_); }
  void after_step() override {}
  StepTimes times() const override { return {ranks_.exposed_ms()}; }

 private:
  struct Flight {
    Tensor bucket, travelling;
    Work work;
  };

  static int64_t to_bytes(double mb) { return static_cast<int64_t>(mb * (1 << 20)); }

  // The gradients of all units lie in one run, which buckets are parts of.
  Tensor materialize() {
    parameters_.materialize(setup_.context, setup_.storage, true);
    return Tensor::over(parameters_.units().front().grads.data(), {parameters_.count()}, setup_.storage);
  }

  void launch(size_t index) {
    const Bucket& bucket = queue_.buckets()[index];
    Flight flight;
    flight.bucket = gradients_.slice(bucket.begin, bucket.end);
    flight.travelling = ranks_.size() > 1 ? to_wire(setup_.context, flight.bucket, wire_) : flight.bucket;
    flight.work = ranks_.start_all_reduce(flight.travelling);
    in_flight_.push_back(std::move(flight));
  }

  const Setup setup_;
  nn::ParameterList& parameters_;
  Ranks ranks_;
  const DType wire_;
  const Tensor gradients_;
  BucketQueue queue_;
  SquaredNorm norm_;
  std::vector<Flight> in_flight_;
};

}  // namespace

std::unique_ptr<Strategy> make_all_reduce(const Setup& setup) {
  if (setup.options.accumulate == "reduced")
    throw UsageError(
        "sync.accumulate = reduced: all-reduce adds up micro-batches before it reduces them (local); zero2 and zero3 "
        "can do so after");
  return std::make_unique<AllReduce>(setup);
}

}  // namespace esp::sync
