#include "esp/parallel/ep/exchange.h"

#include <numeric>
#include <optional>

#include "esp/base/clock.h"
#include "esp/kernel/embedding.h"
#include "esp/nn/share.h"
#include "esp/parallel/ep/post.h"
#include "esp/tensor/on_host.h"

namespace esp::parallel {

using autograd::Tape;
using autograd::Variable;
using device::MemoryCategory;
using nn::Pass;
using tensor::Tensor;

namespace {

// One trip of rows there and back, and its gradients: shared by the nodes that record it.
struct Way {
  Post& post;
  RowCounts counts;   // there
  int64_t there = 0;  // rows that arrive, of M that leave
  int64_t sent = 0, dim = 0;
  Tensor by_expert;  // i32 [there]: as they arrive (sender, expert, token) → (expert, sender, token)
  Tensor by_sender;  // its inverse
  Work work;         // what is under way
  Tensor arriving;   // into this
};

Tensor in_order(const tensor::Context& context, const Tensor& rows, const Tensor& order) {
  Tensor y = tensor::empty(context, rows.shape(), rows.dtype(), MemoryCategory::activation);
  kernel::embedding_forward(y.data(), order.as<const int32_t>(), rows.data(), nullptr, order.count(), rows.dim(-1),
                            rows.dim(0), 1, 0, rows.dtype(), context.stream);
  return y;
}

void start(Way& way, const tensor::Context& context, const Tensor& rows, bool there) {
  way.arriving =
      tensor::empty(context, {there ? way.there : way.sent, way.dim}, rows.dtype(), MemoryCategory::activation);
  way.work = way.post.start(rows, way.arriving, there ? way.counts : way.counts.turned());
}

Tensor finish(Way& way, const char* what) {
  way.post.wait(way.work, what);
  return std::exchange(way.arriving, {});
}

// Its output stands for the rows under way. Backward meets the gradients that ReceiveNode has sent.
class SendNode final : public autograd::Node {
 public:
  SendNode(const Variable& rows, std::shared_ptr<Way> way) : rows_(rows), way_(std::move(way)) {}
  void backward_input(Tape& tape) override {
    tape.give_gradient(rows_.slot(), finish(*way_, "gradients from experts"));
  }

 private:
  Variable rows_;
  std::shared_ptr<Way> way_;
};

class ReceiveNode final : public autograd::Node {
 public:
  ReceiveNode(int in, int out, std::shared_ptr<Way> way) : in_(in), out_(out), way_(std::move(way)) {}
  void backward_input(Tape& tape) override {
    const Tensor leaving = in_order(tape.context(), tape.gradient_of(out_), way_->by_sender);
    start(*way_, tape.context(), leaving, false);
    tape.give_gradient(in_, leaving);  // so that SendNode runs
  }

 private:
  int in_, out_;
  std::shared_ptr<Way> way_;
};

class BackNode final : public autograd::Node {
 public:
  BackNode(int in, int out, std::shared_ptr<Way> way) : in_(in), out_(out), way_(std::move(way)) {}
  void backward_input(Tape& tape) override {
    start(*way_, tape.context(), tape.gradient_of(out_), true);
    tape.give_gradient(in_, in_order(tape.context(), finish(*way_, "gradients to experts"), way_->by_expert));
  }

 private:
  int in_, out_;
  std::shared_ptr<Way> way_;
};

class Divided final : public ExpertExchange {
 public:
  Divided(const ExpertAxes& axes, Duration timeout, obs::TraceRow* trace)
      : context_(axes.context), stream_rows_(axes.rows), timeout_(timeout), trace_(trace) {
    if (axes.experts) post_.emplace(*axes.experts, timeout, trace);
  }

  Parcel send(Pass& pass, const Variable& rows, const Tensor& counts) const override;
  Variable receive(Pass& pass, Parcel& parcel) const override;
  Variable send_back(Pass& pass, const Parcel& parcel, const Variable& rows) const override;
  autograd::Rows rows(Pass& pass, const Variable& stream) const override;
  void add_up(Pass& pass, const Tensor& values) const override;

  double exposed_ms() const override { return waited_ms_ + (post_ ? post_->exposed_ms() : 0); }
  void forget_times() override {
    waited_ms_ = 0;
    if (post_) post_->forget_times();
  }

 private:
  // Rows of each expert here, from each sender: [senders][experts held].
  Tensor traded_counts(const tensor::Context& context, const Tensor& counts) const;

  mutable std::optional<Post> post_;  // waiting is counted
  comm::Communicator *context_, *stream_rows_;
  const Duration timeout_;
  obs::TraceRow* const trace_;
  mutable double waited_ms_ = 0;
};

Tensor Divided::traded_counts(const tensor::Context& context, const Tensor& counts) const {
  const int p = post_->size();
  const int64_t E = counts.count(), block = (E + p - 1) / p;  // equal blocks, the last places of some unused
  const Tensor to = tensor::empty_on_host(context, {p, block}, DType::i64, MemoryCategory::buffer),
               from = tensor::empty_on_host(context, {p, block}, DType::i64, MemoryCategory::buffer);
  std::fill_n(to.as<int64_t>(), to.count(), 0);
  for (int r = 0; r < p; ++r) {
    const nn::Interval held = nn::Share{r, p}.of(E);
    std::copy_n(counts.as<int64_t>() + held.begin, held.count(), to.as<int64_t>() + r * block);
  }
  post_->trade(to, from);
  const int64_t mine = nn::Share{post_->rank(), p}.of(E).count();
  Tensor table = tensor::empty_on_host(context, {p, mine}, DType::i64, MemoryCategory::activation);
  for (int r = 0; r < p; ++r) std::copy_n(from.as<int64_t>() + r * block, mine, table.as<int64_t>() + r * mine);
  return table;
}

// The two orders of what arrives, and how much of each expert there is.
Tensor orders_of(const tensor::Context& context, const Tensor& table, Way& way) {
  const int64_t p = table.dim(0), mine = table.dim(1);
  const int64_t* rows = table.as<int64_t>();
  Tensor counts = tensor::empty_on_host(context, {mine}, DType::i64, MemoryCategory::activation);
  const Tensor by_expert = tensor::empty_on_host(context, {way.there}, DType::i32, MemoryCategory::activation),
               by_sender = tensor::empty_on_host(context, {way.there}, DType::i32, MemoryCategory::activation);
  std::vector<int64_t> begins(static_cast<size_t>(p * mine));  // of (sender, expert), as they arrive
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
  way.by_expert = tensor::placed(context, by_expert, MemoryCategory::activation);
  way.by_sender = tensor::placed(context, by_sender, MemoryCategory::activation);
  return counts;
}

nn::ExpertExchange::Parcel Divided::send(Pass& pass, const Variable& rows, const Tensor& counts) const {
  if (!post_) return nn::ExpertExchange::send(pass, rows, counts);
  Tape& tape = *pass.tape;
  const int p = post_->size();
  auto way = std::make_shared<Way>(Way{*post_, {}, 0, rows.value().dim(0), rows.value().dim(1), {}, {}, {}, {}});
  const Tensor table = traded_counts(tape.context(), counts);
  for (int r = 0; r < p; ++r) {
    const nn::Interval theirs = nn::Share{r, p}.of(counts.count());
    const int64_t *to = counts.as<int64_t>(), *from = table.as<int64_t>() + r * table.dim(1);
    way->counts.to.push_back(static_cast<size_t>(std::accumulate(to + theirs.begin, to + theirs.end, int64_t{0})));
    way->counts.from.push_back(static_cast<size_t>(std::accumulate(from, from + table.dim(1), int64_t{0})));
    way->there += static_cast<int64_t>(way->counts.from.back());
  }
  start(*way, tape.context(), rows.value(), true);
  Parcel parcel{way->arriving, orders_of(tape.context(), table, *way), way};
  if (tape.wants({&rows})) {
    parcel.rows = tape.output(way->arriving);
    tape.record<SendNode>(1, rows, way);
  }
  return parcel;
}

Variable Divided::receive(Pass& pass, Parcel& parcel) const {
  if (!post_) return nn::ExpertExchange::receive(pass, parcel);
  Tape& tape = *pass.tape;
  const auto way = std::static_pointer_cast<Way>(parcel.way);
  Variable y = in_order(tape.context(), finish(*way, "rows to experts"), way->by_expert);
  const Variable arrived = std::exchange(parcel.rows, {});
  if (!tape.wants({&arrived})) return y;
  y = tape.output(y.value());
  tape.record<ReceiveNode>(1, arrived.slot(), y.slot(), way);
  return y;
}

Variable Divided::send_back(Pass& pass, const Parcel& parcel, const Variable& rows) const {
  if (!post_) return nn::ExpertExchange::send_back(pass, parcel, rows);
  Tape& tape = *pass.tape;
  const auto way = std::static_pointer_cast<Way>(parcel.way);
  start(*way, tape.context(), in_order(tape.context(), rows.value(), way->by_sender), false);
  Variable y = finish(*way, "rows from experts");
  if (!tape.wants({&rows})) return y;
  y = tape.output(y.value());
  tape.record<BackNode>(1, rows.slot(), y.slot(), way);
  return y;
}

autograd::Rows Divided::rows(Pass& pass, const Variable& stream) const {
  if (!context_ && !stream_rows_) return nn::ExpertExchange::rows(pass, stream);
  const int64_t here = stream.value().rows();
  const int64_t first =
      stream_rows_ ? stream_rows_->rank() * here : 0;  // among those of this place on the context axis
  const int64_t all = stream_rows_ ? stream_rows_->size() * here : here;
  const int64_t sequences = stream_rows_ ? pass.num_sequences : stream.value().dim(0), held = all / sequences;
  const int64_t length = pass.tokens ? pass.tokens->length : held;
  const tensor::Context& context = pass.tape->context();
  const Tensor numbers = tensor::empty_on_host(context, {here}, DType::i32, MemoryCategory::activation);
  int64_t row = 0;  // of all those
  const nn::TokenRun whole{0, held};
  for (int64_t s = 0; s < sequences; ++s)
    for (const nn::TokenRun& run : pass.tokens ? std::span(pass.tokens->runs) : std::span(&whole, 1))
      for (int64_t i = 0; i < run.count; ++i, ++row)
        if (row >= first && row < first + here)
          numbers.as<int32_t>()[row - first] = static_cast<int32_t>(s * length + run.first + i);
  return {sequences, length, tensor::placed(context, numbers, MemoryCategory::activation)};
}

void Divided::add_up(Pass&, const Tensor& values) const {
  const obs::Span span(trace_, "choices of whole sequences", "communication");
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

std::unique_ptr<ExpertExchange> make_expert_exchange(const ExpertAxes& axes, Duration timeout, obs::TraceRow* trace) {
  return std::make_unique<Divided>(axes, timeout, trace);
}

}  // namespace esp::parallel
