#include "esp/parallel/ep/expert_parallel.h"

#include <numeric>
#include <optional>

#include "esp/base/clock.h"
#include "esp/kernel/embedding.h"
#include "esp/nn/shard.h"
#include "esp/parallel/ep/expert_communicator.h"
#include "esp/tensor/host_tensor.h"

namespace esp::parallel {

using autograd::Tape;
using autograd::Variable;
using device::MemoryCategory;
using nn::ForwardContext;
using tensor::Tensor;

namespace {

// State of the dispatch and combine of one set of rows, and of their gradients. Several autograd nodes share it.
struct RowExchange {
  ExpertCommunicator& expert_comm;
  RowCounts counts;          // row counts of the dispatch
  int64_t num_received = 0;  // number of rows that the dispatch receives
  int64_t num_sent = 0;      // number of rows that the dispatch sends
  int64_t dim = 0;           // number of elements of a row
  // i32 [num_received]: permutation from arrival order (sender, expert, token) to (expert, sender, token)
  Tensor by_expert;
  Tensor by_sender;    // inverse of by_expert
  Work work;           // the exchange in flight
  Tensor destination;  // destination of the exchange in flight
};

Tensor reorder_rows(const tensor::Context& context, const Tensor& rows, const Tensor& order) {
  Tensor y = tensor::empty(context, rows.shape(), rows.dtype(), MemoryCategory::activation);
  kernel::embedding_forward(y.data(), order.as<const int32_t>(), rows.data(), nullptr, order.count(), rows.dim(-1),
                            rows.dim(0), 1, 0, rows.dtype(), context.stream);
  return y;
}

void start(RowExchange& exchange, const tensor::Context& context, const Tensor& rows, bool to_experts) {
  exchange.destination = tensor::empty(context, {to_experts ? exchange.num_received : exchange.num_sent, exchange.dim},
                                       rows.dtype(), MemoryCategory::activation);
  exchange.work =
      exchange.expert_comm.start(rows, exchange.destination, to_experts ? exchange.counts : exchange.counts.reversed());
}

Tensor finish(RowExchange& exchange, const char* what) {
  exchange.expert_comm.wait(exchange.work, what);
  return std::exchange(exchange.destination, {});
}

// The output of this node stands for the rows in flight; ReceiveNode reads it. Backward waits for the gradients that
// ReceiveNode's backward sent.
class DispatchNode final : public autograd::Node {
 public:
  DispatchNode(const Variable& rows, std::shared_ptr<RowExchange> exchange)
      : rows_(rows), exchange_(std::move(exchange)) {}
  void backward_input(Tape& tape) override {
    tape.accumulate_gradient(rows_.slot(), finish(*exchange_, "gradients from experts"));
  }

 private:
  Variable rows_;
  std::shared_ptr<RowExchange> exchange_;
};

class ReceiveNode final : public autograd::Node {
 public:
  ReceiveNode(int in, int out, std::shared_ptr<RowExchange> exchange)
      : in_(in), out_(out), exchange_(std::move(exchange)) {}
  void backward_input(Tape& tape) override {
    const Tensor leaving = reorder_rows(tape.context(), tape.gradient_of(out_), exchange_->by_sender);
    start(*exchange_, tape.context(), leaving, false);
    tape.accumulate_gradient(in_, leaving);  // makes the tape run DispatchNode
  }

 private:
  int in_, out_;
  std::shared_ptr<RowExchange> exchange_;
};

class ReturnRowsNode final : public autograd::Node {
 public:
  ReturnRowsNode(int in, int out, std::shared_ptr<RowExchange> exchange)
      : in_(in), out_(out), exchange_(std::move(exchange)) {}
  void backward_input(Tape& tape) override {
    start(*exchange_, tape.context(), tape.gradient_of(out_), true);
    tape.accumulate_gradient(
        in_, reorder_rows(tape.context(), finish(*exchange_, "gradients to experts"), exchange_->by_expert));
  }

 private:
  int in_, out_;
  std::shared_ptr<RowExchange> exchange_;
};

class ExpertParallel final : public ExpertParallelDispatcher {
 public:
  ExpertParallel(const ExpertAxes& axes, Duration timeout, obs::TraceRow* trace)
      : context_(axes.context), stream_rows_(axes.rows), timeout_(timeout), trace_(trace) {
    if (axes.experts) expert_comm_.emplace(*axes.experts, timeout, trace);
  }

  DispatchedRows dispatch(ForwardContext& pass, const Variable& rows, const Tensor& counts) const override;
  Variable receive(ForwardContext& pass, DispatchedRows& dispatched) const override;
  Variable combine(ForwardContext& pass, const DispatchedRows& dispatched, const Variable& rows) const override;
  autograd::TokenRows token_rows(ForwardContext& pass, const Variable& stream) const override;
  void sum_over_context(ForwardContext& pass, const Tensor& values) const override;

  double exposed_ms() const override { return waited_ms_ + (expert_comm_ ? expert_comm_->exposed_ms() : 0); }
  void reset_times() override {
    waited_ms_ = 0;
    if (expert_comm_) expert_comm_->reset_times();
  }

 private:
  // Returns the number of rows per sender and local expert: [senders][local experts].
  Tensor exchange_counts(const tensor::Context& context, const Tensor& counts) const;

  mutable std::optional<ExpertCommunicator> expert_comm_;  // mutable: it accumulates its waiting time
  comm::Communicator *context_, *stream_rows_;
  const Duration timeout_;
  obs::TraceRow* const trace_;
  mutable double waited_ms_ = 0;
};

Tensor ExpertParallel::exchange_counts(const tensor::Context& context, const Tensor& counts) const {
  const int p = expert_comm_->size();
  const int64_t E = counts.count(), block = (E + p - 1) / p;  // blocks are equal; some have unused entries at the end
  const Tensor to = tensor::empty_on_host(context, {p, block}, DType::i64, MemoryCategory::buffer),
               from = tensor::empty_on_host(context, {p, block}, DType::i64, MemoryCategory::buffer);
  std::fill_n(to.as<int64_t>(), to.count(), 0);
  for (int r = 0; r < p; ++r) {
    const nn::IndexRange held = nn::Shard{r, p}.of(E);
    std::copy_n(counts.as<int64_t>() + held.begin, held.count(), to.as<int64_t>() + r * block);
  }
  expert_comm_->run_all_to_all(to, from);
  const int64_t mine = nn::Shard{expert_comm_->rank(), p}.of(E).count();
  Tensor table = tensor::empty_on_host(context, {p, mine}, DType::i64, MemoryCategory::activation);
  for (int r = 0; r < p; ++r) std::copy_n(from.as<int64_t>() + r * block, mine, table.as<int64_t>() + r * mine);
  return table;
}

// Computes the two permutations of the received rows; returns the number of rows per local expert.
Tensor sort_orders(const tensor::Context& context, const Tensor& table, RowExchange& exchange) {
  const int64_t p = table.dim(0), mine = table.dim(1);
  const int64_t* rows = table.as<int64_t>();
  Tensor counts = tensor::empty_on_host(context, {mine}, DType::i64, MemoryCategory::activation);
  const Tensor by_expert =
                   tensor::empty_on_host(context, {exchange.num_received}, DType::i32, MemoryCategory::activation),
               by_sender =
                   tensor::empty_on_host(context, {exchange.num_received}, DType::i32, MemoryCategory::activation);
  // first received row of each (sender, expert), in arrival order
  std::vector<int64_t> begins(static_cast<size_t>(p * mine));
  std::exclusive_scan(rows, rows + p * mine, begins.begin(), int64_t{0});
  int32_t place = 0;
  for (int64_t e = 0; e < mine; ++e) {
    const int32_t first = place;
    for (int64_t r = 0; r < p; ++r)
      for (int64_t i = 0; i < rows[r * mine + e]; ++i, ++place) {
        const auto arrived = static_cast<int32_t>(begins[static_cast<size_t>(r * mine + e)] + i);
        by_expert.as<int32_t>()[place] = arrived;
        by_sender.as<int32_t>()[arrived] = place;
      }
    counts.as<int64_t>()[e] = place - first;
  }
  exchange.by_expert = tensor::to_device(context, by_expert, MemoryCategory::activation);
  exchange.by_sender = tensor::to_device(context, by_sender, MemoryCategory::activation);
  return counts;
}

nn::TokenDispatcher::DispatchedRows ExpertParallel::dispatch(ForwardContext& pass, const Variable& rows,
                                                             const Tensor& counts) const {
  if (!expert_comm_) return nn::TokenDispatcher::dispatch(pass, rows, counts);
  Tape& tape = *pass.tape;
  const int p = expert_comm_->size();
  auto exchange = std::make_shared<RowExchange>(
      RowExchange{*expert_comm_, {}, 0, rows.value().dim(0), rows.value().dim(1), {}, {}, {}, {}});
  const Tensor table = exchange_counts(tape.context(), counts);
  for (int r = 0; r < p; ++r) {
    const nn::IndexRange theirs = nn::Shard{r, p}.of(counts.count());
    const int64_t *to = counts.as<int64_t>(), *from = table.as<int64_t>() + r * table.dim(1);
    exchange->counts.to.push_back(static_cast<size_t>(std::accumulate(to + theirs.begin, to + theirs.end, int64_t{0})));
    exchange->counts.from.push_back(static_cast<size_t>(std::accumulate(from, from + table.dim(1), int64_t{0})));
    exchange->num_received += static_cast<int64_t>(exchange->counts.from.back());
  }
  start(*exchange, tape.context(), rows.value(), true);
  DispatchedRows dispatched{exchange->destination, sort_orders(tape.context(), table, *exchange), exchange};
  if (tape.must_record({&rows})) {
    dispatched.rows = tape.output(exchange->destination);
    tape.record<DispatchNode>(1, rows, exchange);
  }
  return dispatched;
}

Variable ExpertParallel::receive(ForwardContext& pass, DispatchedRows& dispatched) const {
  if (!expert_comm_) return nn::TokenDispatcher::receive(pass, dispatched);
  Tape& tape = *pass.tape;
  const auto exchange = std::static_pointer_cast<RowExchange>(dispatched.exchange);
  Variable y = reorder_rows(tape.context(), finish(*exchange, "rows to experts"), exchange->by_expert);
  const Variable arrived = std::exchange(dispatched.rows, {});
  if (!tape.must_record({&arrived})) return y;
  y = tape.output(y.value());
  tape.record<ReceiveNode>(1, arrived.slot(), y.slot(), exchange);
  return y;
}

Variable ExpertParallel::combine(ForwardContext& pass, const DispatchedRows& dispatched, const Variable& rows) const {
  if (!expert_comm_) return nn::TokenDispatcher::combine(pass, dispatched, rows);
  Tape& tape = *pass.tape;
  const auto exchange = std::static_pointer_cast<RowExchange>(dispatched.exchange);
  start(*exchange, tape.context(), reorder_rows(tape.context(), rows.value(), exchange->by_sender), false);
  Variable y = finish(*exchange, "rows from experts");
  if (!tape.must_record({&rows})) return y;
  y = tape.output(y.value());
  tape.record<ReturnRowsNode>(1, rows.slot(), y.slot(), exchange);
  return y;
}

autograd::TokenRows ExpertParallel::token_rows(ForwardContext& pass, const Variable& stream) const {
  if (!context_ && !stream_rows_) return nn::TokenDispatcher::token_rows(pass, stream);
  const int64_t here = stream.value().rows();
  // index of the first local row among the rows of this context rank
  const int64_t first = stream_rows_ ? stream_rows_->rank() * here : 0;
  const int64_t all = stream_rows_ ? stream_rows_->size() * here : here;
  const int64_t sequences = stream_rows_ ? pass.num_sequences : stream.value().dim(0), held = all / sequences;
  const int64_t length = pass.tokens ? pass.tokens->length : held;
  const tensor::Context& context = pass.tape->context();
  const Tensor numbers = tensor::empty_on_host(context, {here}, DType::i32, MemoryCategory::activation);
  int64_t row = 0;  // index among the rows of this context rank
  const nn::TokenRun whole{0, held};
  for (int64_t s = 0; s < sequences; ++s)
    for (const nn::TokenRun& run : pass.tokens ? std::span(pass.tokens->runs) : std::span(&whole, 1))
      for (int64_t i = 0; i < run.count; ++i, ++row)
        if (row >= first && row < first + here)
          numbers.as<int32_t>()[row - first] = static_cast<int32_t>(s * length + run.first + i);
  return {sequences, length, tensor::to_device(context, numbers, MemoryCategory::activation)};
}

void ExpertParallel::sum_over_context(ForwardContext&, const Tensor& values) const {
  const obs::Span span(trace_, "expert choices per sequence", "communication");
  const int64_t begun = now_ns();
  for (comm::Communicator* holders : {stream_rows_, context_}) {
    if (!holders) continue;
    comm::Call call;
    call.op = comm::Op::all_reduce;
    call.in = call.out = values.data();
    call.count = static_cast<size_t>(values.count());
    call.dtype = values.dtype();
    call.timeout = timeout_;
    holders->run(call);
  }
  waited_ms_ += static_cast<double>(now_ns() - begun) * 1e-6;
}

}  // namespace

std::unique_ptr<ExpertParallelDispatcher> make_token_dispatcher(const ExpertAxes& axes, Duration timeout,
                                                                obs::TraceRow* trace) {
  return std::make_unique<ExpertParallel>(axes, timeout, trace);
}

}  // namespace esp::parallel
