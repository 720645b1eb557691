// Parameter servers by collectives: a push is a reduce to the rank that serves the elements, and a pull is a broadcast
// from that rank. Every rank takes part in every call, so steps are synchronous.
#include <chrono>

#include "esp/autograd/functions/weights.h"
#include "esp/kernel/elementwise.h"
#include "esp/sync/buckets.h"
#include "esp/sync/norm.h"
#include "esp/sync/ps/layout.h"
#include "esp/sync/ps/ps.h"
#include "esp/sync/timed_communicator.h"
#include "esp/sync/wire.h"

namespace esp::sync {
namespace {

using tensor::Tensor;

class CollectivePs final : public Strategy {
 public:
  explicit CollectivePs(const Setup& setup)
      : setup_(setup),
        parameters_(*setup.parameters),
        ranks_(setup.ranks, {setup.options.deterministic, setup.timeout, setup.trace}),
        layout_(make_server_layout(parameters_, ranks_.size(), setup.options.ps, setup.storage)),
        wire_(wire_type(setup.options.wire, setup.storage)) {
    parameters_.materialize(setup_.context, setup_.storage, true);
    const auto& first = parameters_.units().front();
    values_ = Tensor::borrow(first.values.data(), {parameters_.count()}, setup_.storage);
    gradients_ = Tensor::borrow(first.grads.data(), {parameters_.count()}, setup_.storage);
    std::vector<int64_t> cuts;
    for (int k = 0; k < layout_.num_servers; ++k) cuts.push_back(static_cast<int64_t>(layout_.shard(k).offset));
    norm_.emplace(parameters_, setup_.context, optimizer_shards(), std::move(cuts), setup_.storage,
                  setup_.options.deterministic);
  }

  void fill(const std::function<void(nn::ParameterList::Unit&)>& f) override {
    for (auto& unit : parameters_.units()) f(unit);
  }
  std::vector<optim::OptimizerShard> optimizer_shards() override {
    std::vector<optim::OptimizerShard> all;
    const int server = layout_.server_at(ranks_.rank());
    if (server < 0) return all;
    const comm::Chunk shard = layout_.shard(server);
    const auto begin = static_cast<int64_t>(shard.offset), end = begin + static_cast<int64_t>(shard.count);
    for (const optim::UnitRange& range : unit_ranges(parameters_, begin, end)) {
      const int64_t at = parameters_.units()[static_cast<size_t>(range.unit)].first + range.begin;
      const int64_t last = at + range.end - range.begin;
      all.push_back({range, values_.slice(at, last), gradients_.slice(at, last)});
    }
    return all;
  }
  std::vector<optim::ValueShard> checkpoint_shards() override {
    std::vector<optim::ValueShard> all;
    for (const optim::OptimizerShard& one : optimizer_shards()) all.push_back({one.range, one.values});
    return all;
  }

  void begin_step() override {
    ranks_.reset_times();
    exposed_ms_ = 0;
    parameters_.mark_gradients_stale(setup_.context.stream);
  }
  void begin_pass(const PassOptions&) override {}
  void end_pass() override {}
  void finish() override {
    parameters_.clear_stale_gradients(setup_.context.stream);
    for (int k = 0; k < layout_.num_servers; ++k) {
      const Tensor part = shard_of(gradients_, k);
      if (!setup_.ranks || part.count() == 0) continue;
      const Tensor wire_data = to_wire(setup_.context, part, wire_);
      run(comm::Op::reduce, wire_data, k);
      if (ranks_.rank() == k) from_wire(setup_.context, wire_data, part);
    }
  }
  const std::vector<double>& sums_of_squares() override { return norm_->sums(ranks_); }
  void after_step() override {
    for (int k = 0; k < layout_.num_servers; ++k)
      if (const Tensor part = shard_of(values_, k); setup_.ranks && part.count() > 0) run(comm::Op::broadcast, part, k);
  }
  StepTimes times() const override { return {ranks_.exposed_ms() + exposed_ms_}; }

 private:
  Tensor shard_of(const Tensor& all, int server) const {
    const comm::Chunk shard = layout_.shard(server);
    return all.slice(static_cast<int64_t>(shard.offset), static_cast<int64_t>(shard.offset + shard.count));
  }
  void run(comm::Op op, const Tensor& part, int root) {
    comm::Call call;
    call.op = op;
    call.in = call.out = part.data();
    call.count = static_cast<size_t>(part.count());
    call.dtype = part.dtype();
    call.root = root;
    if (op == comm::Op::reduce && setup_.options.deterministic) call.algorithm = "naive";  // adds in rank order
    obs::Span span(setup_.trace, op == comm::Op::reduce ? "push" : "pull", "communication");
    const int64_t begun = now_ns();
    setup_.ranks->run(call);
    exposed_ms_ += static_cast<double>(now_ns() - begun) * 1e-6;
  }

  const Setup setup_;
  nn::ParameterList& parameters_;
  TimedCommunicator ranks_;
  const ServerLayout layout_;
  const DType wire_;
  Tensor values_, gradients_;
  std::optional<SquaredNorm> norm_;
  double exposed_ms_ = 0;
};

}  // namespace

std::unique_ptr<Strategy> make_collective_ps(const Setup& setup) {
  return std::make_unique<CollectivePs>(setup);
}

}  // namespace esp::sync
