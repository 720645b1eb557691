#include "esp/autograd/functions/routing.h"

#include "esp/autograd/functions/weights.h"
#include "esp/kernel/elementwise.h"
#include "esp/kernel/embedding.h"
#include "esp/kernel/gemm.h"
#include "esp/tensor/host_tensor.h"

namespace esp::autograd {
namespace {

using device::MemoryCategory;
using tensor::Tensor;

// Returns x if it has the accumulation type already, else a temporary copy in that type.
Tensor widened(const tensor::Context& context, const Tensor& x) {
  const DType wide = tensor::accumulation_type(x.dtype());
  return x.dtype() == wide ? x : tensor::cast_to(context, x, wide, MemoryCategory::buffer);
}

kernel::RouteShape shape_of(const Tensor& probabilities, const RouterOptions& options) {
  return {probabilities.rows(), options.num_experts, options.num_chosen, options.normalise};
}

kernel::RouteLosses losses_of(const TokenRows& rows) {
  return {nullptr, rows.length, rows.numbers.as<const int32_t>(), 0};
}

class RouteNode final : public Node {
 public:
  RouteNode(const Variable& x, const RouterOutput& routed, Weight& w, const TokenRows& rows,
            const RouterOptions& options)
      : x_(x), routed_(routed), w_(w), rows_(rows), options_(options), trained_{&w} {}

  void backward_input(Tape& tape) override {
    const tensor::Context& context = tape.context();
    const Tensor& p = routed_.probabilities;
    dlogits_ = tensor::empty(context, p.shape(), p.dtype(), MemoryCategory::activation);
    kernel::RouteLosses losses = losses_of(rows_);
    losses.slopes = routed_.slopes.data();
    losses.z = options_.scale * options_.z;
    kernel::route_backward(dlogits_.data(), tape.gradient_of(routed_.gates.slot()).data(), p.data(), routed_.lse.data(),
                           routed_.choices.as<const int32_t>(), losses, shape_of(p, options_), p.dtype(),
                           context.stream);
    const GradientTarget into = tape.gradient_into(x_);
    if (into.tensor.defined()) add_input_gradient(tape, into);
    routed_ = {};
  }
  void backward_weight(Tape& tape) override {
    const tensor::Context& context = tape.context();
    const Tensor x = widened(context, x_.value());
    const bool direct = x.dtype() == x_.dtype();
    const double beta = beta_for(w_);
    Tensor into = direct ? w_.grad : tape.scratch(w_.grad.shape(), x.dtype());
    kernel::GemmOptions options;
    options.transpose_a = true;
    options.beta = direct ? beta : 0;
    kernel::gemm(into.data(), x.data(), dlogits_.data(), x.dim(-1), options_.num_experts, x.rows(), options, x.dtype(),
                 context.stream);
    if (!direct) add_narrowed(tape, {w_.grad, beta != 0}, into);
  }
  std::span<Weight* const> weights() const override { return trained_.span(); }

 private:
  void add_input_gradient(Tape& tape, const GradientTarget& into) {
    const tensor::Context& context = tape.context();
    const Tensor w = widened(context, w_.fetch_value());
    const bool direct = w.dtype() == x_.dtype();
    const Tensor dx = direct ? into.tensor : tape.scratch(x_.shape(), w.dtype());
    kernel::GemmOptions options;
    options.transpose_b = true;
    options.beta = direct && into.accumulate ? 1 : 0;
    kernel::gemm(dx.data(), dlogits_.data(), w.data(), dlogits_.rows(), w.dim(0), w.dim(1), options, w.dtype(),
                 context.stream);
    if (!direct) add_narrowed(tape, into, dx);
  }
  static void add_narrowed(Tape& tape, const GradientTarget& into, const Tensor& wide) {
    const device::Stream& stream = tape.context().stream;
    const Tensor& to = into.tensor;
    if (!into.accumulate) return kernel::cast(to.data(), to.dtype(), wide.data(), wide.dtype(), wide.count(), stream);
    const Tensor sum = tensor::cast_to(tape.context(), to, wide.dtype(), MemoryCategory::buffer);
    kernel::add_to(sum.data(), wide.data(), sum.count(), sum.dtype(), stream);
    kernel::cast(to.data(), to.dtype(), sum.data(), sum.dtype(), sum.count(), stream);
  }

  Variable x_;
  RouterOutput routed_;
  Weight& w_;
  TokenRows rows_;
  RouterOptions options_;
  Tensor dlogits_;
  TrainedWeights trained_;
};

class PermuteRowsNode final : public Node {
 public:
  PermuteRowsNode(const Variable& x, int y, Tensor places) : x_(x), y_(y), places_(std::move(places)) {}
  void backward_input(Tape& tape) override {
    const GradientTarget into = tape.gradient_into(x_);
    if (!into.tensor.defined()) return;
    kernel::combine_forward(into.tensor.data(), tape.gradient_of(y_).data(), nullptr, places_.as<const int32_t>(),
                            into.accumulate, {places_.rows(), places_.dim(-1), x_.value().dim(-1)}, x_.dtype(),
                            tape.context().stream);
  }

 private:
  Variable x_;
  int y_;
  Tensor places_;
};

class UnpermuteRowsNode final : public Node {
 public:
  UnpermuteRowsNode(const Variable& rows, const Variable& gates, int y, Tensor places)
      : rows_(rows), gates_(gates), y_(y), places_(std::move(places)) {}
  void backward_input(Tape& tape) override {
    const tensor::Context& context = tape.context();
    const Tensor dx = tensor::empty(context, rows_.shape(), rows_.dtype(), MemoryCategory::activation);
    const Tensor dgates = tensor::empty(context, gates_.shape(), gates_.dtype(), MemoryCategory::activation);
    const Tensor& dy = tape.gradient_of(y_);
    kernel::combine_backward(dx.data(), dgates.data(), dy.data(), rows_.value().data(), gates_.value().data(),
                             places_.as<const int32_t>(), {places_.rows(), places_.dim(-1), dy.dim(-1)}, dy.dtype(),
                             context.stream);
    if (rows_.needs_grad()) tape.accumulate_gradient(rows_.slot(), dx);
    if (gates_.needs_grad()) tape.accumulate_gradient(gates_.slot(), dgates);
  }

 private:
  Variable rows_, gates_;
  int y_;
  Tensor places_;
};

}  // namespace

RouterOutput route(Tape& tape, const Variable& x, Weight& w, const TokenRows& rows, const RouterOptions& options) {
  const tensor::Context& context = tape.context();
  ESP_CHECK(w.fetch_value().dim(0) == x.value().dim(-1) && w.value.dim(1) == options.num_experts,
            "router: got x with shape {}, W with shape {}; expected W [dim, {}] with dim = last dimension of x",
            x.shape().text(), w.value.shape().text(), options.num_experts);
  const Tensor wide = widened(context, x.value()), weight = widened(context, w.fetch_value());
  const DType type = wide.dtype();
  const int64_t E = options.num_experts;
  const tensor::Shape chosen = x.shape().with_last(options.num_chosen), scores = x.shape().with_last(E);
  RouterOutput routed;
  routed.choices = tensor::empty(context, chosen, DType::i32, MemoryCategory::activation);
  routed.probabilities = tensor::empty(context, scores, type, MemoryCategory::activation);
  routed.lse = tensor::empty(context, {x.value().rows()}, type, MemoryCategory::activation);
  routed.slopes = tensor::zeros(context, {rows.sequences, E}, type, MemoryCategory::activation);
  Tensor gates = tensor::empty(context, chosen, type, MemoryCategory::activation);
  const Tensor logits = tape.scratch(scores, type);
  kernel::gemm(logits.data(), wide.data(), weight.data(), wide.rows(), E, wide.dim(-1), {}, type, context.stream);
  kernel::route_forward(routed.probabilities.data(), routed.lse.data(), routed.choices.as<int32_t>(), gates.data(),
                        logits.data(), shape_of(routed.probabilities, options), type, context.stream);
  if (!tape.must_record({&x}, {&w})) {
    routed.gates = Variable(std::move(gates));
    return routed;
  }
  routed.gates = tape.output(std::move(gates));
  tape.record<RouteNode>(1, x, routed, w, rows, options);
  return routed;
}

void compute_router_losses(const tensor::Context& context, const RouterOutput& routed, const TokenRows& rows,
                           const Tensor& loads, const RouterOptions& options, kernel::RouteSums* sums) {
  const Tensor& p = routed.probabilities;
  kernel::route_losses(routed.slopes.data(), sums, p.data(), routed.lse.data(), loads.as<const int64_t>(),
                       rows.sequences, options.scale * options.aux, losses_of(rows), shape_of(p, options), p.dtype(),
                       context.stream);
}

ExpertPermutation sort_rows_by_expert(const tensor::Context& context, const Tensor& kept, int64_t num_experts) {
  const int64_t k = kept.dim(-1), rows = kept.rows();
  ExpertPermutation p;
  p.places = tensor::empty(context, {rows, k}, DType::i32, MemoryCategory::activation);
  p.counts = tensor::empty_on_host(context, {num_experts}, DType::i64, MemoryCategory::activation);
  const Tensor sources = tensor::empty(context, {rows * k}, DType::i32, MemoryCategory::activation);
  const int64_t M = kernel::order_by_expert(p.places.as<int32_t>(), sources.as<int32_t>(), p.counts.as<int64_t>(),
                                            kept.as<const int32_t>(), rows, k, num_experts, context.stream);
  p.sources = sources.slice(0, M);
  return p;
}

Variable permute_rows(Tape& tape, const Variable& x, const ExpertPermutation& permutation) {
  const int64_t dim = x.value().dim(-1), M = permutation.sources.count();
  Variable y = tensor::empty(tape.context(), {M, dim}, x.dtype(), MemoryCategory::activation);
  kernel::embedding_forward(y.value().data(), permutation.sources.as<const int32_t>(), x.value().data(), nullptr, M,
                            dim, x.value().rows(), 1, 0, x.dtype(), tape.context().stream);
  if (!tape.must_record({&x})) return y;
  y = tape.output(y.value());
  tape.record<PermuteRowsNode>(1, x, y.slot(), permutation.places);
  return y;
}

Variable unpermute_rows(Tape& tape, const Variable& rows, const Variable& gates, const ExpertPermutation& permutation,
                        const tensor::Shape& like) {
  const Tensor& places = permutation.places;
  Variable y = tensor::empty(tape.context(), like, rows.dtype(), MemoryCategory::activation);
  kernel::combine_forward(y.value().data(), rows.value().data(), gates.value().data(), places.as<const int32_t>(),
                          false, {places.rows(), places.dim(-1), like.dim(-1)}, y.dtype(), tape.context().stream);
  if (!tape.must_record({&rows, &gates})) return y;
  y = tape.output(y.value());
  tape.record<UnpermuteRowsNode>(1, rows, gates, y.slot(), places);
  return y;
}

}  // namespace esp::autograd
