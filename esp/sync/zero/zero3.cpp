// ZeRO stage 3: a rank holds whole weights only for the units in the window.
#include <cstring>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/device/gpu.h"
#include "esp/kernel/embedding.h"
#include "esp/sync/norm.h"
#include "esp/sync/prefetch_window/access_plan.h"
#include "esp/sync/prefetch_window/window_plan.h"
#include "esp/sync/tier/offload.h"
#include "esp/sync/tier/tiered_gather.h"
#include "esp/sync/wire.h"
#include "esp/sync/zero/scatter.h"
#include "esp/sync/zero/shard_boundaries.h"
#include "esp/sync/zero/unit_gathers.h"
#include "esp/sync/zero/zero.h"

namespace esp::sync {
namespace {

using device::MemoryCategory;
using nn::ParameterList;
using tensor::Tensor;

// One bucket per unit, the last unit first.
std::vector<GradientBucket> units_as_buckets(ParameterList& parameters) {
  std::vector<GradientBucket> buckets;
  for (auto unit = parameters.units().rbegin(); unit != parameters.units().rend(); ++unit) {
    GradientBucket bucket{unit->first, unit->first + unit->count, unit->parameters};
    std::reverse(bucket.parameters.begin(), bucket.parameters.end());
    buckets.push_back(std::move(bucket));
  }
  return buckets;
}

// The enabled parts of ZeRO++.
struct ZeroPlusPlusParts {
  bool qwz = false, hpz = false, qgz = false;
  bool any() const { return qwz || hpz || qgz; }
};

ZeroPlusPlusParts parse_plus_plus(const std::string& names) {
  ZeroPlusPlusParts on;
  for (size_t at = 0; at < names.size();) {
    const size_t comma = std::min(names.find(',', at), names.size());
    const std::string name = names.substr(at, comma - at);
    at = comma + 1;
    if (name == "qwz")
      on.qwz = true;
    else if (name == "hpz")
      on.hpz = true;
    else if (name == "qgz")
      on.qgz = true;
    else if (name != "none")
      throw UsageError(fmt::format(
          "sync.quantise: got \"{}\"; expected none, or a list of qwz, hpz, qgz separated by commas.", name));
  }
  return on;
}

class Zero3 final : public Strategy {
 public:
  explicit Zero3(const Setup& setup)
      : setup_(setup),
        plus_(parse_plus_plus(setup.options.quantise)),
        parameters_(*setup.parameters),
        group_(setup),
        nodes_(plus_.any() ? split_by_node(setup.ranks, setup.ranks_per_node) : NodeGrid{}),
        // Gathers have their own communicator: gradients may complete in another order on each rank, but every rank
        // must gather in the same order.
        gather_comm_(group_.intra_group().comm() && !plus_.any()
                         ? group_.intra_group().comm()->split(0, group_.intra_group().rank())
                         : nullptr),
        gathering_(gather_comm_.get(), {setup.options.deterministic, setup.timeout, setup.trace}),
        gather_nodes_(plus_.any() ? split_by_node(setup.ranks, setup.ranks_per_node) : NodeGrid{}),
        scatter_(
            units_as_buckets(parameters_), setup.context, chunks(), make_scatter(),
            {setup.storage, setup.options.accumulate == "local", setup.gradients_to_sink, max_gradients_in_flight()}),
        values_(make_values()),
        shards_(make_shards()),
        gather_(make_gather()),
        window_(parameters_, setup.context, *gather_,
                {setup.storage, std::max<int64_t>(setup.options.prefetch, setup.options.prefetch < 0 ? 1 : 0),
                 setup.options.keep_gathered, values_ != nullptr}),
        norm_(parameters_, setup.context, optimizer_shards(),
              shard_boundaries(scatter_.buckets(), group_.intra_group().size()), setup.storage,
              setup.options.deterministic) {
    scatter_.set_sink([this](size_t bucket, const Tensor& sum, bool add) {
      if (sum.count() == 0) return;
      const size_t owned = owned_of_[unit_of(bucket)];
      if (setup_.options.update_early) norm_.add(owned, sum);  // first the norm, because the sink consumes the sum
      sink_->take_gradient(owned, 0, sum, add);
    });
    if (values_ && setup.options.direct_access)
      for (nn::Parameter& p : parameters_.all())
        p.weight.on_rows = [this, &p](const Tensor& ids) { return rows_in_place(p, ids); };
  }

  void fill(const std::function<void(ParameterList::Unit&)>& f) override {
    window_.values_changed();
    for (size_t unit = 0; unit < parameters_.units().size(); ++unit) {
      ParameterList::Unit& of = parameters_.units()[unit];
      window_.allocate(unit);
      f(of);
      const comm::Chunk chunk = group_.intra_group().chunk(of.count);
      const std::byte* const mine = of.values.as<std::byte>() + chunk.offset * size_of(setup_.storage);
      if (values_) {
        values_->write(unit, 0, {mine, shards_[unit].bytes()});
      } else {
        device::transfer(shards_[unit].data(), mine, shards_[unit].bytes());
      }
      window_.drop(unit);
    }
    gather_->values_changed();
  }
  std::vector<optim::OptimizerShard> optimizer_shards() override {
    std::vector<optim::OptimizerShard> all;
    owned_of_.assign(shards_.size(), 0);
    for (size_t unit = 0; unit < shards_.size(); ++unit) {
      const comm::Chunk chunk = group_.intra_group().chunk(parameters_.units()[unit].count);
      const auto begin = static_cast<int64_t>(chunk.offset), end = static_cast<int64_t>(chunk.offset + chunk.count);
      if (begin == end) continue;
      owned_of_[unit] = all.size();
      all.push_back({{static_cast<int>(unit), begin, end}, shards_[unit], scatter_.shard(bucket_of(unit))});
    }
    return all;
  }
  std::vector<optim::ValueShard> checkpoint_shards() override {
    std::vector<optim::ValueShard> all;
    if (group_.first_group())
      for (const optim::OptimizerShard& one : optimizer_shards()) {
        optim::ValueShard& held = all.emplace_back(optim::ValueShard{one.range, one.values});
        if (!one.values.defined()) held.read = reading(static_cast<size_t>(one.range.unit));
      }
    return all;
  }
  void set_sink(GradientSink* sink) override { sink_ = sink; }

  void begin_step() override {
    group_.reset_times();
    gathering_.reset_times();
    waited_before_ms_ = quantised_wait_ms();
    if (setup_.options.update_early) norm_.begin();
    summed_ = nullptr;
  }
  void begin_pass(const PassOptions& pass) override {
    if (reading_) values_->release(*std::exchange(reading_, std::nullopt));
    window_.begin_pass(pass.training);
    scatter_.begin_pass(pass);
  }
  void begin_backward() override { window_.begin_backward(); }
  void end_pass() override {
    window_.end_pass();
    scatter_.end_pass();
  }
  void finish() override {
    scatter_.finish();
    // frees all whole units: the optimizer is about to write the shards in place
    if (values_) window_.values_changed();
  }
  const std::vector<double>& sums_of_squares() override {
    if (setup_.gradients_to_sink && !setup_.options.update_early)
      for (size_t unit = 0; unit < shards_.size(); ++unit)
        if (shards_[unit].count() > 0) norm_.set_gradients(owned_of_[unit], sink_->gradient(owned_of_[unit]));
    // With early updates gradients are consumed on arrival, so their squares are summed over the ranks only once per
    // step.
    if (!summed_ || !setup_.options.update_early) summed_ = &norm_.sums(group_.intra_group());
    return *summed_;
  }
  void after_step() override {
    gather_->values_changed();
    // The first step records the order of uses. The second step prefetches in that order, and its times choose the
    // window.
    if (setup_.options.prefetch < 0 && ++num_steps_ == 2) choose_window();
  }
  std::vector<std::string> take_notes() override { return std::exchange(notes_, {}); }
  StepTimes times() const override {
    return {group_.exposed_ms() + gathering_.exposed_ms() + quantised_wait_ms() - waited_before_ms_};
  }
  std::vector<NamedGroup> groups() const override {
    std::vector<NamedGroup> groups = group_.groups();
    if (gather_comm_) groups.push_back({"gather", gather_comm_.get()});
    for (const NodeGrid* nodes : {&nodes_, &gather_nodes_}) {
      if (nodes->intra_node) groups.push_back({"node", nodes->intra_node.get()});
      if (nodes->inter_node) groups.push_back({"across_nodes", nodes->inter_node.get()});
    }
    return groups;
  }

 private:
  Tensor rows_in_place(const nn::Parameter& table, const Tensor& ids);
  void choose_window();

  size_t bucket_of(size_t unit) const { return parameters_.units().size() - 1 - unit; }
  size_t unit_of(size_t bucket) const { return parameters_.units().size() - 1 - bucket; }
  // Waits that the TimedCommunicators do not count: those of quantised and tiered gathers and of quantised scatters.
  double quantised_wait_ms() const {
    if (values_) return gather_->exposed_ms();
    return plus_.any() ? gather_->exposed_ms() + scatter_.exposed_ms() : 0;
  }

  // With a single rank nothing is sent: a unit's gradients leave the device once those of the next unit are complete.
  size_t max_gradients_in_flight() const { return group_.intra_group().size() == 1 ? 1 : 2; }
  std::vector<comm::Chunk> chunks() {
    std::vector<comm::Chunk> all;
    for (const GradientBucket& bucket : units_as_buckets(parameters_))
      all.push_back(group_.intra_group().chunk(bucket.count()));
    return all;
  }
  std::unique_ptr<ValueTier> make_values() {
    if (setup_.options.offload_params == "none") return nullptr;
    ValueShape shape{{}, setup_.storage, &setup_.offload->host()};
    for (const auto& unit : parameters_.units())
      shape.counts.push_back(static_cast<int64_t>(group_.intra_group().chunk(unit.count).count));
    auto values = make_value_tier(setup_.options.offload_params, shape, setup_.offload->files());
    setup_.offload->set_values(values.get());
    return values;
  }
  // Reads a unit's weights for a checkpoint. At most one shard is read from the file at a time; it stays in memory
  // until another is read, the last one until the next pass.
  tensor::OffloadReader reading(size_t unit) {
    return [this, unit](int64_t first, const Tensor& to) {
      const std::byte* const shard = values_->fetch(unit);
      if (reading_ && *reading_ != unit) values_->release(*reading_);
      reading_ = unit;
      std::memcpy(to.data(), shard + static_cast<size_t>(first) * size_of(to.dtype()), to.bytes());
    };
  }
  std::vector<Tensor> make_shards() {
    std::vector<Tensor> shards;
    for (size_t unit = 0; values_ && unit < parameters_.units().size(); ++unit) shards.push_back(values_->shard(unit));
    if (values_) return shards;
    for (const auto& unit : parameters_.units())
      shards.push_back(tensor::empty(setup_.context,
                                     {static_cast<int64_t>(group_.intra_group().chunk(unit.count).count)},
                                     setup_.storage, MemoryCategory::parameter));
    return shards;
  }
  std::unique_ptr<UnitGather> make_gather() {
    if (values_)
      return std::make_unique<TieredGather>(gathering_, setup_.context, *values_, setup_.offload->link(),
                                            parameters_.units().size(), setup_.timeout);
    if (!plus_.any()) return std::make_unique<PlainGather>(gathering_, shards_);
    NodeGather::Options options;
    options.encoding = {plus_.qwz ? 8 : 0, setup_.options.quantise_block};
    options.secondary = plus_.hpz;
    options.timeout = setup_.timeout;
    return std::make_unique<NodeGather>(gather_nodes_, setup_.context, parameters_, shards_, setup_.storage, options);
  }
  std::unique_ptr<BucketScatter> make_scatter() {
    std::vector<int64_t> counts;
    for (const GradientBucket& bucket : units_as_buckets(parameters_)) counts.push_back(bucket.count());
    if (!plus_.any())
      return std::make_unique<PlainScatter>(group_, setup_.context, counts.size(),
                                            wire_type(setup_.options.wire, setup_.storage));
    return std::make_unique<NodeScatter>(nodes_, setup_.context, counts, setup_.storage,
                                         Encoding{plus_.qgz ? 4 : 0, setup_.options.quantise_grad_block},
                                         setup_.timeout);
  }

  const Setup setup_;
  const ZeroPlusPlusParts plus_;
  ParameterList& parameters_;
  ShardGroup group_;
  const NodeGrid nodes_;
  const std::unique_ptr<comm::Communicator> gather_comm_;
  TimedCommunicator gathering_;
  const NodeGrid gather_nodes_;
  GradientScatter scatter_;
  const std::unique_ptr<ValueTier> values_;  // null if the weights are on the device
  const std::vector<Tensor> shards_;         // [unit]: this rank's shard
  const std::unique_ptr<UnitGather> gather_;
  UnitWindow window_;
  std::vector<size_t> owned_of_;   // [unit]: index of its shard in optimizer_shards()
  std::optional<size_t> reading_;  // the unit that a checkpoint read last
  SquaredNorm norm_;
  const std::vector<double>* summed_ = nullptr;  // the sums of squares of this step; null until computed
  GradientSink* sink_ = nullptr;
  double waited_before_ms_ = 0;
  int64_t num_steps_ = 0;
  std::vector<std::string> notes_;
};

// Direct access for an embedding: copies the rows for `ids` from host memory without fetching the whole table; on a
// GPU, the embedding kernel reads pinned host memory. Returns an undefined tensor if the table is on the device or a
// fetch is faster.
Tensor Zero3::rows_in_place(const nn::Parameter& table, const Tensor& ids) {
  const auto unit = static_cast<size_t>(table.unit);
  const int64_t dim = table.shape.dim(1);
  const uint64_t touched = touched_by_lookup(ids.count(), dim, size_of(setup_.storage));
  if (!window_.is_sharded(unit) || !prefers_direct_access({shards_[unit].bytes(), touched, 0}, {})) return {};
  const Tensor rows = tensor::empty(setup_.context, {ids.count(), dim}, setup_.storage, MemoryCategory::activation);
  const std::byte* const from = values_->fetch(unit) + static_cast<size_t>(table.offset) * size_of(setup_.storage);
  kernel::embedding_forward(rows.data(), ids.as<const int32_t>(), from, nullptr, ids.count(), dim, table.shape.dim(0),
                            1, 0, setup_.storage, setup_.context.stream);
  setup_.offload->link().read_in_place(touched);
  // The GPU kernel may still be reading. Host-tier memory does not change before the gradients of this unit arrive,
  // which is after the kernel has ended. But a shard from a file is in a buffer that is reused after `release`, so this
  // call waits.
  if (!shards_[unit].data()) device::finish(setup_.context.stream);
  values_->release(unit);
  return rows;
}

// Chooses the window from measured times. The offload time is 0, because the computing thread copies gradients to the
// host, so that time is part of the backward time.
void Zero3::choose_window() {
  std::vector<LayerTimes> layers;
  uint64_t largest = 0;
  for (const auto& unit : parameters_.units())
    largest = std::max(largest, static_cast<uint64_t>(unit.count) * size_of(setup_.storage));
  double fetching = 0, computing = 0;
  for (size_t unit = 0; unit < parameters_.units().size(); ++unit) {
    const UnitWindow::ComputeTimes& took = window_.computed()[unit];
    layers.push_back({gather_->fetch_ms(unit), took.forward_ms, took.backward_ms, 0, largest});
    fetching += layers.back().fetch_ms;
    computing += took.forward_ms + took.backward_ms;
  }
  // The measured peak contains the window so far (ahead = 1: two units), so the budget is those two units plus what is
  // free.
  const device::MemoryAccount& account = setup_.context.pool->account();
  const uint64_t budget = account.budget(device::MemoryTier::device);
  const uint64_t peak = account.use(device::MemoryTier::device).peak;
  const WindowPlan plan = least_window(layers, budget == 0 ? 0 : 2 * largest + budget - std::min(budget, peak));
  // All ranks must prefetch the same number of units: the maximum over the ranks, limited by the rank with the least
  // free memory.
  auto ahead = plan.window, most = plan.short_of_memory ? plan.window : static_cast<int64_t>(layers.size());
  if (setup_.ranks) {
    setup_.ranks->all_reduce(&ahead, &ahead, 1, DType::i64, comm::ReduceOp::max);
    setup_.ranks->all_reduce(&most, &most, 1, DType::i64, comm::ReduceOp::min);
  }
  ahead = std::min(ahead, most);
  window_.set_ahead(ahead);
  const auto num = static_cast<double>(layers.size());
  notes_.push_back(
      fmt::format("sync.prefetch = {} (measured): a unit takes {:.2f} ms to fetch and {:.2f} ms to compute; {}", ahead,
                  fetching / num, computing / num,
                  plan.short_of_memory ? fmt::format("limited by memory: {:.2f} ms stall per step", plan.stall_ms)
                                       : std::string("the smallest window without stalls")));
}

}  // namespace

std::unique_ptr<Strategy> make_zero3(const Setup& setup) {
  const ZeroPlusPlusParts plus = parse_plus_plus(setup.options.quantise);
  if (plus.any() && setup.options.group != 0)
    throw UsageError("sync.group with sync.quantise: ZeRO++ shards over all ranks. Remove one of them.");
  if (plus.any() && setup.options.wire != "auto")
    throw UsageError("sync.wire with sync.quantise: qgz sets the wire format of gradients. Remove sync.wire.");
  if (setup.options.offload_params != "none") {
    if (!setup.offload || !setup.gradients_to_sink)
      throw UsageError(fmt::format(
          "sync.offload_params = {}: needs the optimizer off the device too. Set sync.offload = \"host\" or \"file\".",
          setup.options.offload_params));
    if (plus.any())
      throw UsageError(
          "sync.offload_params with sync.quantise: ZeRO++ gathers from device memory. Remove one of them.");
  }
  return std::make_unique<Zero3>(setup);
}

}  // namespace esp::sync
