// Stages 1 and 2: whole weights on every rank, sharded optimizer state (and gradients).
#include "esp/autograd/functions/weights.h"
#include "esp/sync/compress/strategy_compression.h"
#include "esp/sync/norm.h"
#include "esp/sync/wire.h"
#include "esp/sync/zero/compressed_scatter.h"
#include "esp/sync/zero/scatter.h"
#include "esp/sync/zero/shard_boundaries.h"
#include "esp/sync/zero/zero.h"

namespace esp::sync {
namespace {

using device::MemoryCategory;
using tensor::Tensor;

std::vector<GradientBucket> buckets_of(const Setup& setup) {
  const auto bytes = [](double mb) { return static_cast<int64_t>(mb * (1 << 20)); };
  return make_gradient_buckets(*setup.parameters, bytes(setup.options.first_bucket_mb), bytes(setup.options.bucket_mb),
                               setup.storage);
}

// Base of both stages: all weights are in one buffer, and each rank updates its chunk of every bucket.
class ReplicatedWeights : public Strategy {
 public:
  explicit ReplicatedWeights(const Setup& setup)
      : setup_(setup),
        parameters_(*setup.parameters),
        group_(setup),
        wire_(wire_type(setup.options.wire, setup.storage)),
        values_(tensor::empty(setup.context, {parameters_.count()}, setup.storage, MemoryCategory::parameter)) {
    for (auto& unit : parameters_.units())
      parameters_.bind_values(unit, values_.slice(unit.first, unit.first + unit.count));
  }

  void fill(const std::function<void(nn::ParameterList::Unit&)>& f) override {
    for (auto& unit : parameters_.units()) f(unit);
  }
  std::vector<optim::ValueShard> checkpoint_shards() override {
    std::vector<optim::ValueShard> all;
    if (group_.first_group())
      for (const optim::OptimizerShard& one : optimizer_shards()) all.push_back({one.range, one.values});
    return all;
  }
  void set_sink(GradientSink* sink) override { sink_ = sink; }
  const std::vector<double>& sums_of_squares() override {
    if (setup_.gradients_to_sink)
      for (size_t i = 0; i < num_owned_; ++i) norm_->set_gradients(i, sink_->gradient(i));
    return norm_->sums(group_.intra_group());
  }
  void after_step() override {
    std::vector<Work> works;
    const auto& all = buckets();
    // reversed: forward uses the last bucket first
    for (auto bucket = all.rbegin(); bucket != all.rend(); ++bucket)
      works.push_back(group_.intra_group().start_all_gather(values_.slice(bucket->begin, bucket->end)));
    for (const Work& work : works) group_.intra_group().wait(work, "values");
  }
  StepTimes times() const override { return {group_.exposed_ms()}; }
  std::vector<NamedGroup> groups() const override {
    std::vector<NamedGroup> all = group_.groups();
    for (const NamedGroup& group : bucket_scatter().groups()) all.push_back(group);
    return all;
  }
  std::vector<ExtraState> extra_state() override { return bucket_scatter().extra_state(); }
  std::vector<std::string> take_notes() override { return bucket_scatter().take_notes(); }

 protected:
  virtual const std::vector<GradientBucket>& buckets() const = 0;
  virtual BucketScatter& bucket_scatter() const = 0;
  // Gradients of the elements [begin, end) of this rank's chunk of a bucket; undefined if a sink stores them.
  virtual Tensor gradients(size_t bucket, int64_t begin, int64_t end) const = 0;

  std::vector<optim::OptimizerShard> optimizer_shards() override {
    std::vector<optim::OptimizerShard> all;
    for (size_t b = 0; b < buckets().size(); ++b) {
      const comm::Chunk chunk = group_.intra_group().chunk(buckets()[b].count());
      const int64_t first = buckets()[b].begin + static_cast<int64_t>(chunk.offset);
      for (const optim::UnitRange& range : unit_ranges(parameters_, first, first + static_cast<int64_t>(chunk.count))) {
        const int64_t at = parameters_.units()[static_cast<size_t>(range.unit)].first + range.begin;
        const int64_t count = range.end - range.begin;
        all.push_back({range, values_.slice(at, at + count), gradients(b, at - first, at - first + count)});
      }
    }
    return all;
  }
  void make_norm() {
    std::vector<optim::OptimizerShard> mine = optimizer_shards();
    num_owned_ = mine.size();
    norm_.emplace(parameters_, setup_.context, std::move(mine),
                  shard_boundaries(buckets(), group_.intra_group().size()), setup_.storage,
                  setup_.options.deterministic);
  }
  std::vector<comm::Chunk> chunks_of(const std::vector<GradientBucket>& all) const {
    std::vector<comm::Chunk> chunks;
    for (const GradientBucket& bucket : all) chunks.push_back(group_.intra_group().chunk(bucket.count()));
    return chunks;
  }

  const Setup setup_;
  nn::ParameterList& parameters_;
  ShardGroup group_;
  const DType wire_;
  const Tensor values_;
  std::optional<SquaredNorm> norm_;
  size_t num_owned_ = 0;
  GradientSink* sink_ = nullptr;
};

class Zero1 final : public ReplicatedWeights {
 public:
  explicit Zero1(const Setup& setup)
      : ReplicatedWeights(setup),
        gradients_(tensor::zeros(setup.context, {parameters_.count()}, setup.storage, MemoryCategory::gradient)),
        queue_(buckets_of(setup),
               [this](size_t bucket) {
                 scatter_->start(bucket, bucket_of(bucket));
                 in_flight_.push_back(bucket);
               }),
        scatter_(make_bucket_scatter(setup, queue_.buckets(), group_, wire_)) {
    for (auto& unit : parameters_.units()) {
      parameters_.bind_gradients(unit, gradients_.slice(unit.first, unit.first + unit.count));
      for (nn::Parameter* p : unit.parameters) p->weight.trained = true;
    }
    make_norm();
  }

  void begin_step() override {
    group_.reset_times();
    parameters_.mark_gradients_stale(setup_.context.stream);
  }
  void begin_pass(const PassOptions& pass) override {
    if (pass.training && pass.last) queue_.arm();
  }
  void end_pass() override {
    queue_.flush([this](nn::Parameter& p) { autograd::clear_if_stale(p.weight, setup_.context.stream); });
  }
  void finish() override {
    for (const size_t bucket : in_flight_) {
      const Tensor all = bucket_of(bucket), sum = scatter_->finish(bucket);
      const comm::Chunk chunk = group_.intra_group().chunk(all.count());
      from_wire(setup_.context, sum,
                all.slice(static_cast<int64_t>(chunk.offset), static_cast<int64_t>(chunk.offset + chunk.count)));
    }
    in_flight_.clear();
  }

 private:
  const std::vector<GradientBucket>& buckets() const override { return queue_.buckets(); }
  BucketScatter& bucket_scatter() const override { return *scatter_; }
  Tensor bucket_of(size_t index) const {
    const GradientBucket& bucket = queue_.buckets()[index];
    return gradients_.slice(bucket.begin, bucket.end);
  }
  Tensor gradients(size_t bucket, int64_t begin, int64_t end) const override {
    const GradientBucket& of = queue_.buckets()[bucket];
    const int64_t first = of.begin + static_cast<int64_t>(group_.intra_group().chunk(of.count()).offset);
    return gradients_.slice(first + begin, first + end);
  }

  const Tensor gradients_;
  BucketQueue queue_;
  std::vector<size_t> in_flight_;
  const std::unique_ptr<BucketScatter> scatter_;
};

class Zero2 final : public ReplicatedWeights {
 public:
  explicit Zero2(const Setup& setup)
      : ReplicatedWeights(setup),
        scatter_(buckets_of(setup), setup.context, chunks_of(buckets_of(setup)),
                 make_bucket_scatter(setup, buckets_of(setup), group_, wire_),
                 {setup.storage, setup.options.accumulate == "local" || setup.options.compress != "none",
                  setup.gradients_to_sink}) {
    make_norm();
    scatter_.set_sink([this](size_t bucket, const Tensor& sum, bool add) { send(bucket, sum, add); });
  }

  void begin_step() override { group_.reset_times(); }
  void begin_pass(const PassOptions& pass) override { scatter_.begin_pass(pass); }
  void end_pass() override { scatter_.end_pass(); }
  void finish() override { scatter_.finish(); }

 private:
  const std::vector<GradientBucket>& buckets() const override { return scatter_.buckets(); }
  BucketScatter& bucket_scatter() const override { return scatter_.bucket_scatter(); }
  Tensor gradients(size_t bucket, int64_t begin, int64_t end) const override {
    return setup_.gradients_to_sink ? Tensor() : scatter_.shard(bucket).slice(begin, end);
  }
  // Passes the sum of a chunk to the sink, split by unit: a chunk may span several units. `index` counts the owned
  // ranges bucket by bucket, as optimizer_shards() lists them.
  void send(size_t bucket, const Tensor& sum, bool add) {
    size_t index = 0;
    for (size_t b = 0; b < bucket; ++b) index += ranges_in(b).size();
    int64_t at = 0;
    for (const optim::UnitRange& range : ranges_in(bucket)) {
      const int64_t count = range.end - range.begin;
      sink_->take_gradient(index++, 0, sum.slice(at, at + count), add);
      at += count;
    }
  }
  std::vector<optim::UnitRange> ranges_in(size_t bucket) const {
    const comm::Chunk chunk = scatter_.chunk(bucket);
    const int64_t first = buckets()[bucket].begin + static_cast<int64_t>(chunk.offset);
    return unit_ranges(parameters_, first, first + static_cast<int64_t>(chunk.count));
  }

  GradientScatter scatter_;
};

}  // namespace

std::unique_ptr<Strategy> make_zero1(const Setup& setup) {
  check_compression(setup.options);
  ESP_CHECK(!setup.gradients_to_sink,
            "zero1: does not support a gradient sink, because its gradients stay on the device");
  if (setup.options.accumulate == "reduced")
    throw UsageError(
        "sync.accumulate: got reduced; method zero1 supports auto and local (micro-batches are summed before "
        "reducing). Use sync.method = \"zero2\" or \"zero3\" to reduce every micro-batch.");
  return std::make_unique<Zero1>(setup);
}

std::unique_ptr<Strategy> make_zero2(const Setup& setup) {
  check_compression(setup.options);
  return std::make_unique<Zero2>(setup);
}

}  // namespace esp::sync
