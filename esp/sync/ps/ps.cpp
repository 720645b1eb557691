#include "esp/sync/ps/ps.h"

#include <cstring>
#include <optional>

#include <fmt/format.h>

#include "esp/autograd/functions/weights.h"
#include "esp/base/error.h"
#include "esp/kernel/elementwise.h"
#include "esp/sync/buckets.h"
#include "esp/sync/norm.h"
#include "esp/sync/ps/ps_worker.h"
#include "esp/sync/ps/ready_partitions.h"
#include "esp/sync/wire.h"

namespace esp::sync {
namespace {

using device::MemoryCategory;
using tensor::Tensor;

constexpr size_t kStalenessBins = 17;  // bins for staleness 0 to 15, and one for all larger values

Setup checked(Setup setup) {
  if (setup.options.accumulate == "reduced")
    throw UsageError(
        "sync.accumulate: got reduced; method ps supports auto and local (workers sum micro-batches before a push). "
        "Use sync.method = \"zero2\" or \"zero3\" to reduce every micro-batch.");
  check_compression(setup.options);
  PsOptions& ps = setup.options.ps;
  // With staleness 0 no worker begins a step before the slowest has finished the previous one, so ssp equals sync.
  if (ps.mode == "ssp" && ps.staleness == 0) ps.mode = "sync";
  return setup;
}

// The wire type of pushes. With a single rank pushes are local copies in the storage type.
DType push_wire_type(const Setup& setup) {
  if (setup.options.compress != "none") return DType::f32;
  const DType wire = wire_type(setup.options.wire, setup.storage);
  return setup.ranks && setup.ranks->size() > 1 ? wire : setup.storage;
}

std::byte* element(const Tensor& flat, int64_t at) {
  return flat.as<std::byte>() + static_cast<size_t>(at) * size_of(flat.dtype());
}

class Ps final : public Strategy, public AsyncWorkers {
 public:
  explicit Ps(const Setup& setup)
      : setup_(checked(setup)),
        ps_(setup_.options.ps),
        parameters_(*setup.parameters),
        rank_(setup.ranks ? setup.ranks->rank() : 0),
        layout_(make_server_layout(parameters_, setup.ranks ? setup.ranks->size() : 1, ps_, setup.storage)),
        is_worker_(layout_.works(rank_)),
        wire_(push_wire_type(setup_)),
        ranks_(setup.ranks, {setup.options.deterministic, setup.timeout, setup.trace}) {
    // Fails here and not when the order is written, after training.
    if (layout_.server_at(rank_) >= 0 && !ps_.record.empty()) prepare_order_folder(ps_.record);
    if (setup_.options.compress != "none") {
      compression_ = std::make_unique<PsCompression>(setup_, layout_, rank_);
      notes_ = compression_->take_notes();
    }
    if (is_worker_) {
      parameters_.materialize(setup_.context, setup_.storage, true);
      gradients_ = Tensor::borrow(parameters_.units().front().grads.data(), {parameters_.count()}, setup_.storage);
      wire_gradients_ = wire_ == setup_.storage
                            ? gradients_
                            : tensor::empty(setup_.context, {parameters_.count()}, wire_, MemoryCategory::buffer);
      ready_.emplace(parameters_, layout_, [this](int partition) { push(partition); });
      unit_in_.assign(parameters_.units().size(), true);
      if (ps_.cross_barrier)
        for (nn::Parameter& p : parameters_.all()) p.weight.on_use = [this, &p] { wait_unit(p.unit); };
    }
    ps_worker_ = std::make_unique<PsWorker>(worker_setup(), setup.ranks ? setup.ranks->open_transport() : nullptr);
    ps_worker_->set_trace(setup.trace);
    make_norm();
  }

  void fill(const std::function<void(nn::ParameterList::Unit&)>& f) override {
    for (auto& unit : parameters_.units()) {
      if (!is_worker_)
        parameters_.bind_values(unit,
                                tensor::empty(setup_.context, {unit.count}, setup_.storage, MemoryCategory::parameter));
      f(unit);
      serve_values_of(unit);
      if (!is_worker_) parameters_.bind_values(unit, {});
    }
  }

  std::vector<optim::OptimizerShard> optimizer_shards() override {
    std::vector<optim::OptimizerShard> all;
    if (!servers_step()) return is_worker_ ? optim::all_units(parameters_) : all;
    const ShardServer* server = ps_worker_->server();
    if (!server) return all;
    const int64_t first = server->first(), end = first + server->values().count();
    for (const optim::UnitRange& range : unit_ranges(parameters_, first, end)) {
      const int64_t at = first_of(range) - first, count = range.end - range.begin;
      all.push_back({range, server->values().slice(at, at + count), server->grads().slice(at, at + count)});
    }
    return all;
  }

  std::vector<optim::ValueShard> checkpoint_shards() override {
    synchronise();
    std::vector<optim::ValueShard> all;
    if (servers_step() || rank_ == 0)
      for (const optim::OptimizerShard& one : optimizer_shards()) all.push_back({one.range, one.values});
    return all;
  }

  std::unique_ptr<optim::Optimizer> make_optimizer(const optim::OptimizerOptions& options) override;

  void begin_step() override {
    ranks_.reset_times();
    ps_worker_->reset_times();
    // Workers must not push before every server has its weights and its optimizer.
    if (asynchronous() && !std::exchange(began_, true)) barrier();
    // Workers must not push before every rank has read its extra state, because pushes change that state.
    if (std::exchange(extra_state_read_, false)) barrier();
    if (std::exchange(paused_, false)) ps_worker_->pause(false);
    if (!is_worker_) return;
    if (!ps_.cross_barrier) ps_worker_->wait_values();
    ps_worker_->wait_pushed();
    parameters_.mark_gradients_stale(setup_.context.stream);
  }
  void begin_pass(const PassOptions& pass) override {
    if (pass.training && pass.last) ready_->arm();
  }
  void end_pass() override {
    ready_->flush([this](nn::Parameter& p) { autograd::clear_if_stale(p.weight, setup_.context.stream); });
  }
  void finish() override {
    if (!asynchronous() && servers_step()) ps_worker_->wait_gathered();
    if (servers_step()) return;
    ps_worker_->next_step();  // sums that arrive from here on belong to the next step
    if (is_worker_) ps_worker_->wait_values();
  }
  const std::vector<double>& sums_of_squares() override { return norm_->sums(ranks_); }

  void after_step() override {
    if (asynchronous()) {
      if (is_worker_) ps_worker_->end_step(lr_, factor_, !std::exchange(stepped_, false));
      if (!is_worker_) ps_worker_->wait_all_workers();
      ps_worker_->next_step();
      if (is_worker_) ps_worker_->pull(false, wants_stop_);
    } else if (servers_step()) {
      ps_worker_->publish();
      ps_worker_->next_step();
    }
    if (!is_worker_ || !servers_step()) return;
    unit_in_.assign(unit_in_.size(), false);
    if (!asynchronous() && !ps_.cross_barrier) ps_worker_->wait_values();
  }

  std::vector<ExtraState> extra_state() override {
    if (!compression_) return {};
    extra_state_read_ = true;
    std::vector<ExtraState> all = compression_->state();
    if (const ShardServer* server = ps_worker_->server(); server && compression_->estimates())
      for (int worker = 0; worker < layout_.num_workers; ++worker)
        all.push_back(
            {fmt::format("estimate-of-{}", worker), server->range(worker), false, server->first(), layout_.count});
    return all;
  }

  AsyncWorkers* async_workers() override { return this; }
  bool lockstep() const override { return !asynchronous(); }
  bool is_server_only() const override { return !is_worker_; }
  // Contains a barrier: no push may reach a server before begin_at has set the server's first step.
  void begin_at(int64_t step) override {
    ps_worker_->begin_at(step);
    barrier();
  }
  void request_stop() override { wants_stop_ = true; }
  bool stops_before(int64_t step) override {
    const int64_t stop = ps_worker_->stop();
    return stop > 0 && step >= stop;
  }
  void synchronise() override {
    if (is_worker_ && servers_step()) ps_worker_->wait_values();
    if (!asynchronous()) return;
    barrier();
    gather_totals();
    if (is_worker_) {
      ps_worker_->pull(true, wants_stop_);
      ps_worker_->wait_values();
    }
    ps_worker_->pause(paused_ = true);
    barrier();
    if (ShardServer* server = ps_worker_->server(); server && !ps_.record.empty())
      save_order(ps_.record, server->index(), server->order());
  }

  StepTimes times() const override { return {ranks_.exposed_ms() + ps_worker_->exposed_ms()}; }
  std::vector<comm::CallStats> messages() const override {
    const MessageQueue::QueueTraffic counts = ps_worker_->counts().queue;
    std::vector<comm::CallStats> all;
    for (const auto& [name, of] : {std::pair("push", counts.pushes), std::pair("pull", counts.values)}) {
      comm::CallStats& row = all.emplace_back();
      row.op = comm::Op::send;
      row.algorithm = name;
      row.transport = ps_worker_->transport();
      row.calls = row.messages = of.messages;
      row.bytes_sent = of.bytes_sent;
      row.bytes_received = of.bytes_received;
    }
    return all;
  }
  std::vector<std::string> take_notes() override { return std::exchange(notes_, {}); }

 private:
  friend class ServedOptimizer;
  bool servers_step() const { return ps_.update == "server"; }
  bool asynchronous() const { return ps_.mode != "sync"; }
  int64_t first_of(const optim::UnitRange& range) const {
    return parameters_.units()[static_cast<size_t>(range.unit)].first + range.begin;
  }
  void barrier() {
    if (setup_.ranks) setup_.ranks->barrier();
  }

  PsWorker::Setup worker_setup() {
    PsWorker::Setup s;
    s.layout = &layout_;
    s.ps = ps_;
    s.storage = setup_.storage;
    s.wire = wire_;
    s.context = {{setup_.context.stream.device, nullptr, nullptr}, setup_.context.pool};
    s.rank = rank_;
    s.timeout = setup_.timeout;
    s.compression = compression_.get();
    s.gradients = [this](int partition) -> const void* {
      return compression_ ? compression_->push_code(partition) : element(wire_gradients_, part(partition).begin);
    };
    s.receive_buffer = [this](int partition) {
      return servers_step() ? value_at(part(partition)) : element(wire_gradients_, part(partition).begin);
    };
    s.received = [this](int partition) {
      if (servers_step() || wire_ == setup_.storage) return;
      const Partition& p = part(partition);
      kernel::cast(element(gradients_, p.begin), setup_.storage, element(wire_gradients_, p.begin), wire_, p.count(),
                   {});
    };
    return s;
  }
  const Partition& part(int partition) const { return layout_.partitions[static_cast<size_t>(partition)]; }
  std::byte* value_at(const Partition& p) const {
    const auto& unit = parameters_.units()[static_cast<size_t>(p.unit)];
    return element(unit.values, p.begin - unit.first);
  }

  void push(int partition) {
    const Partition& p = part(partition);
    if (wire_ != setup_.storage)
      kernel::cast(element(wire_gradients_, p.begin), wire_, element(gradients_, p.begin), setup_.storage, p.count(),
                   setup_.context.stream);
    if (compression_) compression_->encode_push(partition, element(wire_gradients_, p.begin), ps_worker_->step());
    ps_worker_->push(partition);
  }

  void wait_unit(int unit) {
    if (unit_in_[static_cast<size_t>(unit)]) return;
    ps_worker_->wait_values(unit);
    unit_in_[static_cast<size_t>(unit)] = true;
  }

  // If a server runs on this rank: copies the server's part of a gathered unit into the server's weights.
  void serve_values_of(const nn::ParameterList::Unit& unit) {
    const ShardServer* server = ps_worker_->server();
    if (!server || !servers_step()) return;
    const int64_t begin = std::max(unit.first, server->first());
    const int64_t end = std::min(unit.first + unit.count, server->first() + server->values().count());
    if (begin < end)
      std::memcpy(element(server->values(), begin - server->first()), element(unit.values, begin - unit.first),
                  static_cast<size_t>(end - begin) * size_of(setup_.storage));
  }

  // If synchronous servers update, the norm is a sum over all servers. Otherwise each worker computes the norm of its
  // own push, or of the sum that all workers have, without communication.
  void make_norm() {
    if (servers_step() && !asynchronous()) {
      std::vector<int64_t> cuts;
      for (int k = 0; k < layout_.num_servers; ++k) cuts.push_back(static_cast<int64_t>(layout_.shard(k).offset));
      norm_.emplace(parameters_, setup_.context, optimizer_shards(), std::move(cuts), setup_.storage,
                    setup_.options.deterministic);
    } else {
      norm_.emplace(parameters_, setup_.context,
                    is_worker_ ? optim::all_units(parameters_) : std::vector<optim::OptimizerShard>(),
                    std::vector<int64_t>(), setup_.storage, setup_.options.deterministic);
    }
  }

  // Collects the totals of all servers. Every server has applied the same number of pushes, so that number is the
  // maximum, not the sum.
  void gather_totals() {
    double counts[kStalenessBins] = {}, largest[2] = {};
    if (ShardServer* server = ps_worker_->server()) {
      for (const auto& [stale, count] : server->staleness())
        counts[std::min<size_t>(static_cast<size_t>(stale), kStalenessBins - 1)] += static_cast<double>(count);
      largest[0] = static_cast<double>(server->largest_gap());
      largest[1] = static_cast<double>(inner_ ? inner_->num_steps() : 0);
    }
    if (setup_.ranks) {
      setup_.ranks->all_reduce(counts, counts, kStalenessBins, DType::f64, comm::ReduceOp::sum);
      setup_.ranks->all_reduce(largest, largest, 2, DType::f64, comm::ReduceOp::max);
    }
    num_updates_ = static_cast<int64_t>(largest[1]);
    std::string text;
    for (size_t i = 0; i < kStalenessBins; ++i)
      if (counts[i] > 0)
        text += fmt::format("{}{}{}: {}", text.empty() ? "" : ", ", i, i + 1 == kStalenessBins ? "+" : "", counts[i]);
    if (!text.empty())
      notes_.push_back(
          fmt::format("parameter servers: pushes by staleness {}; largest clock gap {}", text, largest[0]));
  }

  const Setup setup_;
  const PsOptions ps_;
  nn::ParameterList& parameters_;
  const int rank_;
  const ServerLayout layout_;
  const bool is_worker_;
  const DType wire_;
  TimedCommunicator ranks_;
  Tensor gradients_, wire_gradients_;  // contiguous gradients of all units, in the storage type and in the wire type
  std::optional<ReadyPartitions> ready_;
  std::vector<bool> unit_in_;
  std::unique_ptr<PsCompression> compression_;  // null without compression
  std::optional<SquaredNorm> norm_;
  std::vector<std::string> notes_;
  std::unique_ptr<optim::Optimizer> inner_;  // optimizer of the server that runs on this rank
  double lr_ = 0, factor_ = 1;
  bool stepped_ = false, wants_stop_ = false, began_ = false;
  bool extra_state_read_ = false;        // true: extra state was read since the last step
  bool paused_ = false;                  // true: the server is paused, so that this rank can read its weights
  int64_t num_updates_ = 0;              // number of updates that every server had applied at the last synchronisation
  std::unique_ptr<PsWorker> ps_worker_;  // last member: its thread ends before the objects it uses
};

// The optimizer that the trainer sees on a rank with a server. In asynchronous modes step() only records the learning
// rate, because the server applies each push when it is complete.
class ServedOptimizer final : public optim::Optimizer {
 public:
  explicit ServedOptimizer(Ps& ps) : ps_(ps), inner_(ps.inner_.get()) {}

  void step(double lr, double grad_scale) override {
    if (!ps_.asynchronous()) return inner_->step(lr, grad_scale);
    ps_.lr_ = lr;
    ps_.factor_ = grad_scale;
    ps_.stepped_ = true;
  }
  std::span<optim::OptimizerState> states() override { return inner_->states(); }
  int64_t num_steps() const override {
    return ps_.asynchronous() ? std::max(ps_.num_updates_, inner_->num_steps()) : inner_->num_steps();
  }
  void set_num_steps(int64_t steps) override {
    inner_->set_num_steps(steps);
    ps_.num_updates_ = steps;
  }
  void refresh_master() override {
    // Loading may have written the weights of the model only, so the server's part is copied to the server first.
    if (ps_.is_worker_)
      for (const auto& unit : ps_.parameters_.units()) ps_.serve_values_of(unit);
    inner_->refresh_master();
  }

 private:
  Ps& ps_;
  optim::Optimizer* const inner_;
};

std::unique_ptr<optim::Optimizer> Ps::make_optimizer(const optim::OptimizerOptions& options) {
  if (!servers_step()) return nullptr;
  tensor::Context context = setup_.context;
  // No thread pool: the communication thread runs the optimizer while the training thread uses the pool.
  if (asynchronous()) context.stream.pool = nullptr;
  inner_ = optim::make_optimizer(options, parameters_, context, optimizer_shards());
  if (ShardServer* server = ps_worker_->server()) server->set_optimizer(inner_.get());
  return std::make_unique<ServedOptimizer>(*this);
}

}  // namespace

std::unique_ptr<Strategy> make_ps(const Setup& setup) {
  if (setup.options.ps.exchange == "collectives") return make_collective_ps(checked(setup));
  return std::make_unique<Ps>(setup);
}

}  // namespace esp::sync
