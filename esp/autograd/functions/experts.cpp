#include "esp/autograd/functions/experts.h"

#include "esp/autograd/functions/linear_gemms.h"
#include "esp/autograd/functions/weights.h"

namespace esp::autograd {
namespace {

using device::MemoryCategory;
using tensor::Tensor;

const void* data_of(const Weight* weight) {
  return weight ? weight->fetch_value().data() : nullptr;
}

// Calls f(expert, first row, end row) for every expert, including experts without rows.
template <typename F>
void each_expert(const ExpertSet& set, const Tensor& counts, F f) {
  int64_t first = 0;
  for (size_t e = 0; e < set.experts.size(); ++e) {
    const int64_t last = first + counts.as<int64_t>()[e];
    f(set.experts[e], first, last);
    first = last;
  }
}

// y = x·W + b for the rows of one expert. Fetches the value of W even if there are no rows.
void gemm_rows(const tensor::Context& context, const Tensor& y, const Tensor& x, Weight& w, Weight* b,
               kernel::GemmOptions options) {
  options.bias = data_of(b);
  options.ragged = true;
  const Tensor& value = w.fetch_value();
  if (x.rows() == 0) return;
  kernel::gemm(y.data(), x.data(), value.data(), x.rows(), value.dim(1), value.dim(0), options, x.dtype(),
               context.stream);
}

Tensor like(const tensor::Context& context, const Tensor& x, int64_t width) {
  return tensor::empty(context, x.shape().with_last(width), x.dtype(), MemoryCategory::activation);
}

void activate(const tensor::Context& context, const Tensor& hidden, const Tensor& pre, const ExpertSet& set) {
  if (set.gated) {
    kernel::swiglu_forward(hidden.data(), pre.data(), pre.rows(), hidden.dim(-1), pre.dtype(), context.stream);
  } else {
    kernel::activation_forward(hidden.data(), pre.data(), pre.count(), set.activation, pre.dtype(), context.stream);
  }
}

kernel::GemmOptions ragged() {
  kernel::GemmOptions options;
  options.ragged = true;
  return options;
}

class ExpertsNode final : public Node {
 public:
  ExpertsNode(const Variable& x, int y, Tensor counts, Tensor pre, Tensor hidden, const ExpertSet& set)
      : x_(x), y_(y), counts_(std::move(counts)), pre_(std::move(pre)), hidden_(std::move(hidden)), set_(set) {}

  void backward_input(Tape& tape) override {
    const tensor::Context& context = tape.context();
    const int64_t ffn = set_.gated ? pre_.dim(-1) / 2 : pre_.dim(-1);
    if (!hidden_.defined() && set_.trained()) {  // recomputed before pre_ is released
      hidden_ = like(context, pre_, ffn);
      activate(context, hidden_, pre_, set_);
    }
    d_pre_ = like(context, pre_, pre_.dim(-1));
    set_.gated ? through_gate(tape, ffn) : through_activation(tape);
    pre_ = {};
    const GradientTarget into = tape.gradient_into(x_);
    each_expert(set_, counts_, [&](const ExpertWeights& expert, int64_t first, int64_t last) {
      const Tensor& w = expert.up->fetch_value();
      if (first == last || !into.tensor.defined()) return;
      input_grad_gemm(context, {into.tensor.slice(first, last), into.accumulate}, d_pre_.slice(first, last), w,
                      ragged());
    });
  }
  void backward_weight(Tape& tape) override {
    const Tensor& dy = tape.gradient_of(y_);
    each_expert(set_, counts_, [&](const ExpertWeights& expert, int64_t first, int64_t last) {
      if (first == last) return;
      weight_grad_gemm(tape.context(), *expert.down, expert.down_bias, hidden_.slice(first, last),
                       dy.slice(first, last), {}, true);
      weight_grad_gemm(tape.context(), *expert.up, expert.up_bias, x_.value().slice(first, last),
                       d_pre_.slice(first, last), {}, true);
    });
  }
  std::span<Weight* const> weights() const override {
    return set_.trained() ? std::span<Weight* const>(set_.weights) : std::span<Weight* const>();
  }

 private:
  void through_activation(Tape& tape) {
    each_expert(set_, counts_, [&](const ExpertWeights& expert, int64_t first, int64_t last) {
      const Tensor& w = expert.down->fetch_value();
      if (first == last) return;
      const Tensor pre = pre_.slice(first, last);
      kernel::GemmOptions derivative = ragged();
      derivative.activation = set_.activation;
      derivative.pre_activation_in = pre.data();
      input_grad_gemm(tape.context(), {d_pre_.slice(first, last), false}, tape.gradient_of(y_).slice(first, last), w,
                      derivative);
    });
  }
  void through_gate(Tape& tape, int64_t ffn) {
    const Tensor d_hidden = tape.scratch(pre_.shape().with_last(ffn), pre_.dtype());
    each_expert(set_, counts_, [&](const ExpertWeights& expert, int64_t first, int64_t last) {
      const Tensor& w = expert.down->fetch_value();
      if (first == last) return;
      input_grad_gemm(tape.context(), {d_hidden.slice(first, last), false}, tape.gradient_of(y_).slice(first, last), w,
                      ragged());
    });
    kernel::swiglu_backward(d_pre_.data(), d_hidden.data(), pre_.data(), pre_.rows(), ffn, pre_.dtype(),
                            tape.context().stream);
  }

  Variable x_;
  int y_;
  Tensor counts_, pre_, hidden_, d_pre_;
  const ExpertSet& set_;
};

}  // namespace

void ExpertSet::add(const ExpertWeights& expert) {
  experts.push_back(expert);
  for (Weight* w : {expert.up, expert.up_bias, expert.down, expert.down_bias})
    if (w) weights.push_back(w);
}

Variable expert_rows(Tape& tape, const Variable& x, const Tensor& counts, const ExpertSet& set, bool keep) {
  const tensor::Context& context = tape.context();
  ESP_CHECK(x.shape().rank() == 2 && counts.count() == static_cast<int64_t>(set.experts.size()),
            "expert_rows: got x with shape {}, {} row counts; expected x [M, dim], {} row counts (one per expert)",
            x.shape().text(), counts.count(), set.experts.size());
  bool records = tape.must_record({&x});
  for (Weight* w : set.weights) records = tape.must_record({}, {w}) || records;
  if (set.experts.empty()) return x;

  const int64_t wide = set.experts[0].up->fetch_value().dim(1), ffn = set.gated ? wide / 2 : wide;
  // As in `mlp`: for types of at least 32 bits the activation is a GEMM epilogue.
  const bool fused = !set.gated && x.dtype() == tensor::accumulation_type(x.dtype());
  Tensor hidden = like(context, x.value(), ffn);
  Tensor pre = fused && !records ? Tensor() : like(context, x.value(), wide);
  each_expert(set, counts, [&](const ExpertWeights& expert, int64_t first, int64_t last) {
    kernel::GemmOptions options;
    Tensor kept = pre.defined() ? pre.slice(first, last) : Tensor();
    if (fused) {
      options.activation = set.activation;
      options.pre_activation = kept.data();
    }
    gemm_rows(context, fused ? hidden.slice(first, last) : kept, x.value().slice(first, last), *expert.up,
              expert.up_bias, options);
  });
  if (!fused) activate(context, hidden, pre, set);
  Variable y = like(context, x.value(), x.value().dim(-1));
  each_expert(set, counts, [&](const ExpertWeights& expert, int64_t first, int64_t last) {
    gemm_rows(context, y.value().slice(first, last), hidden.slice(first, last), *expert.down, expert.down_bias, {});
  });
  if (!records) return y;
  y = tape.output(y.value());
  if (!keep) hidden = {};
  tape.record<ExpertsNode>(1, x, y.slot(), counts, std::move(pre), std::move(hidden), set);
  return y;
}

}  // namespace esp::autograd
