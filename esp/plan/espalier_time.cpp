#include "esp/plan/espalier_time.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "esp/plan/calibrated_rates.h"
#include "esp/plan/espalier_pieces.h"

namespace esp::plan {
namespace {

// Seconds of the kernels and collective calls of one rank for one micro-batch.
class KernelCosts {
 public:
  KernelCosts(const ModelShape& shape, const Policy& policy, const CalibratedRates& rates)
      : s_(shape), p_(policy), r_(rates), e_(policy.precision == "fp32" || policy.precision == "tf32" ? 4 : 2) {
    rows_ = static_cast<double>(p_.micro_batch * s_.seq) / p_.cp;
    stream_rows_ = p_.sequence ? rows_ / p_.tp : rows_;
    width_ = static_cast<double>(s_.hidden);
    heads_ = static_cast<double>(s_.heads) / p_.tp;
    kv_heads_ = static_cast<double>(s_.kv_heads > 0 ? s_.kv_heads : s_.heads) / p_.tp;
    head_dim_ = static_cast<double>(s_.head_dim > 0 ? s_.head_dim : s_.hidden / std::max<int64_t>(1, s_.heads));
    ffn_ = static_cast<double>(s_.ffn) / p_.tp;
    // Collectives were measured with all ranks on the shared cores, kernels with one rank at a time. So call times are
    // divided by the number of ranks per core.
    turns_ = std::max(1.0, static_cast<double>(p_.world()) * rates.threads() / rates.cores());
  }

  StageTime layer() const {
    StageTime t;
    norm(t, true);
    linear(t, width_, (heads_ + 2 * kv_heads_) * head_dim_, true);
    if (!s_.learned_positions) stream(t, "add", 2 * rows_ * (heads_ + kv_heads_) * head_dim_ * e_, 1, 1);
    attention(t);
    linear(t, heads_ * head_dim_, width_, false);
    norm(t, true);
    linear(t, width_, ffn_ * (s_.gated ? 2 : 1), true);
    // In fp32 the GEMM includes an ungated activation function in forward. Its derivative is fused in every precision.
    const double hidden = rows_ * ffn_ * e_;
    if (s_.gated) {
      stream(t, "activation", 3 * hidden, 1, 5.0 / 3);
    } else if (e_ == 2) {
      stream(t, "activation", 2 * hidden, 1, 0);
    } else {
      stream(t, "activation", 2 * hidden, 0.5, 0.5);
    }
    linear(t, ffn_, width_, false);
    tensor_calls(t);
    StageTime whole = t;
    const double share = p_.recomputed_share(s_.layers);
    if (p_.recompute == RecomputePolicy::full) whole.backward += share * t.forward;
    if (p_.recompute == RecomputePolicy::selective) whole.backward += share * r_.stream_s("activation", 2 * hidden);
    return whole;
  }

  StageTime stem() const {
    StageTime t;
    stream(t, "add", 3 * stream_rows_ * width_ * e_, 1, 0);
    t.weights += r_.stream_s("add", 3 * rows_ * width_ * e_) + r_.kernel_s();
    if (p_.tp > 1) t.forward += call_s(p_.sequence ? "reduce_scatter" : "all_reduce", p_.tp, rows_ * width_ * e_);
    return t;
  }

  // In forward the head computes the logits, their gradient, the input gradient and the gradient of the table.
  StageTime head() const {
    StageTime t;
    norm(t, false);
    const double classes = static_cast<double>(s_.vocab) / p_.tp;
    t.forward += r_.gemm_s("input", rows_, classes, width_) + r_.gemm_s("forward", rows_, width_, classes) +
                 r_.gemm_s("weight", classes, width_, rows_) + r_.stream_s("loss", 2 * rows_ * classes * e_) +
                 4 * r_.kernel_s();
    if (p_.tp > 1) {
      t.forward += call_s("all_reduce", p_.tp, rows_ * 4) + call_s("all_reduce", p_.tp, rows_ * 8);
      t.forward += call_s(p_.sequence ? "reduce_scatter" : "all_reduce", p_.tp, rows_ * width_ * e_);
      if (p_.sequence) t.forward += call_s("all_gather", p_.tp, rows_ * width_ * e_);
    }
    return t;
  }

  double call_s(const char* op, int ranks, double bytes) const {
    return (r_.call_cost(op, ranks).time_s(bytes) + r_.wakeup_s()) / turns_;
  }
  double turns() const { return turns_; }
  double message_bytes() const { return stream_rows_ * width_ * e_; }
  double element() const { return e_; }

 private:
  void stream(StageTime& t, const char* kernel, double bytes, double forward, double backward) const {
    const double s = r_.stream_s(kernel, bytes) + r_.kernel_s();
    t.forward += s * forward;
    t.backward += s * backward;
  }
  void norm(StageTime& t, bool residual) const {
    const double one = stream_rows_ * width_ * e_;
    t.forward += r_.stream_s("norm", (residual ? 4 : 2) * one) + r_.kernel_s();
    t.backward += r_.stream_s("norm_back", 4 * one) + r_.kernel_s();
    t.weights += r_.stream_s("norm_back", 2 * one) + r_.kernel_s();
  }
  void linear(StageTime& t, double in, double out, bool column_parallel) const {
    t.forward += r_.gemm_s("forward", rows_, out, in) + r_.kernel_s();
    t.backward += r_.gemm_s("input", rows_, in, out) + r_.kernel_s();
    t.weights += r_.gemm_s("weight", in, out, rows_) + r_.kernel_s();
    if (s_.bias) {
      t.weights += r_.stream_s("add", rows_ * out * e_) + r_.kernel_s();
      if (!column_parallel && p_.tp > 1) t.forward += r_.stream_s("add", 2 * stream_rows_ * out * e_) + r_.kernel_s();
    }
  }
  void attention(StageTime& t) const {
    const double seq = static_cast<double>(s_.seq);
    double square = static_cast<double>(p_.micro_batch) * heads_ * head_dim_ * seq * seq / p_.cp;
    if (s_.causal) square *= 0.5 * (seq + 1) / seq;
    const double tokens = seq / p_.cp;
    t.forward += r_.attention_s("forward", 4 * square, tokens) + r_.kernel_s();
    t.backward += r_.attention_s("backward", 10 * square, tokens) + r_.kernel_s();
    if (p_.cp > 1) context_calls(t);
  }
  void context_calls(StageTime& t) const {
    const double c = p_.cp, keys = rows_ * 2 * kv_heads_ * head_dim_;
    if (p_.context == "ulysses") {
      const double q = rows_ * (heads_ + 2 * kv_heads_) * head_dim_ * e_, o = rows_ * heads_ * head_dim_ * e_;
      t.forward += call_s("all_to_all", p_.cp, q) + call_s("all_to_all", p_.cp, o) + r_.stream_s("add", 4 * (q + o));
      t.backward += call_s("all_to_all", p_.cp, q) + call_s("all_to_all", p_.cp, o) + r_.stream_s("add", 4 * (q + o));
      return;
    }
    // Sends run during attention, but all cores are busy, so the time of the sends is added. Gradients of keys and
    // values are sent in fp32.
    t.forward += (c - 1) * call_s("sendrecv", p_.cp, keys * e_) + r_.stream_s("add", 4 * keys * e_) + c * r_.kernel_s();
    t.backward += (c - 1) * call_s("sendrecv", p_.cp, keys * e_) + c * call_s("sendrecv", p_.cp, keys * 4) +
                  r_.stream_s("add", 8 * keys * 4) + c * r_.kernel_s();
  }
  // Tensor parallelism: two collectives per layer in forward and two in backward. With sequence parallelism the weight
  // gradients also gather the rows again.
  void tensor_calls(StageTime& t) const {
    if (p_.tp == 1) return;
    const double bytes = rows_ * width_ * e_;
    if (!p_.sequence) {
      const double one = call_s("all_reduce", p_.tp, bytes);
      t.forward += 2 * one;
      t.backward += 2 * one;
      return;
    }
    const double gather = call_s("all_gather", p_.tp, bytes), scatter = call_s("reduce_scatter", p_.tp, bytes);
    t.forward += 2 * (gather + scatter);
    t.backward += 2 * (gather + scatter);
    t.weights += 2 * gather;
  }

  const ModelShape& s_;
  const Policy& p_;
  const CalibratedRates& r_;
  const double e_;
  double rows_, stream_rows_, width_, heads_, kv_heads_, head_dim_, ffn_, turns_;
};

StageTime sum(StageTime a, const StageTime& b) {
  a.forward += b.forward;
  a.backward += b.backward;
  a.weights += b.weights;
  return a;
}

PortCall port_call(const CalibratedRates::CallCost& line, double bytes) {
  return {line.time_s(bytes), 0, false};
}

// Adds the gradient buckets of a stage and the optimizer update. The reduction of the buckets starts in backward and
// uses the same cores.
void add_replica_traffic(StageInput& stage, const CalibratedRates& rates, const Policy& p, double parameters,
                         double element, double turns, double units) {
  const int num_replicas = p.dp * p.cp;
  constexpr double kBucket = 25 << 20, kFirst = 1 << 20;
  double updated = parameters;
  if (num_replicas > 1) {
    const double bytes = parameters * element;
    const char* op = p.zero == 0 ? "all_reduce" : "reduce_scatter";
    const double passes = p.zero >= 2 ? static_cast<double>(p.num_micro_batches()) : 1;
    const double calls = p.zero == 3 ? units : 1 + std::ceil(std::max(0.0, bytes - kFirst) / kBucket);
    const auto line = rates.call_cost(op, num_replicas);
    for (int i = 0; i < static_cast<int>(calls); ++i)
      stage.sums.push_back({passes * (line.alpha_s + bytes / calls / line.bytes_per_s), 0, false});
    if (p.zero > 0) {
      updated = parameters / num_replicas;
      const double gathers = p.zero == 3 ? 2 * static_cast<double>(p.num_micro_batches()) : 1;
      const auto gather = rates.call_cost("all_gather", num_replicas);
      stage.update_s += gathers * (calls * gather.alpha_s + bytes / gather.bytes_per_s) / turns;
    }
  }
  // bytes per parameter of an update: read weight, gradient and moments; write weight and moments
  constexpr double kState = 28;
  stage.update_s += rates.stream_s("update", updated * kState) + rates.stream_s("add", updated * element);
}

}  // namespace

bool uses_calibrated_rates(const Cluster& cluster, const Policy& policy) {
  return policy.software == "espalier" && cluster.processor.kind == "cpu" && CalibratedRates::is_calibrated(cluster);
}

StepInput espalier_step_input(const ModelShape& shape, const Cluster& cluster, const Policy& policy) {
  const std::string type = policy.precision == "fp32" || policy.precision == "tf32" ? "fp32" : "bf16";
  const CalibratedRates rates(cluster, type, policy.world());
  const KernelCosts kernels(shape, policy, rates);
  StepInput input;
  const int chunks = policy.pp > 1 ? policy.interleave : 1;
  const parallel::ScheduleShape pipe{policy.pp, chunks, static_cast<int>(policy.num_micro_batches())};
  input.schedule = parallel::make_schedule(policy.pp == 1 ? "1f1b" : policy.schedule, pipe);
  const StageTime layer = kernels.layer();
  input.stages.resize(static_cast<size_t>(policy.pp));
  std::vector<double> parameters(input.stages.size(), 0.0);
  const std::vector<EspalierPiece> pieces = espalier_pieces(shape, policy.pp * chunks);
  for (size_t i = 0; i < pieces.size(); ++i) {
    StageTime t;
    double& held = parameters[i % input.stages.size()];
    for (int64_t l = pieces[i].begin; l < pieces[i].end; ++l) {
      t = sum(t, layer);
      held += shape.layer_parameters(l) / policy.tp;
    }
    if (pieces[i].stem) t = sum(t, kernels.stem()), held += shape.embedding_parameters() / policy.tp;
    if (pieces[i].head) {
      t = sum(t, kernels.head());
      held += shape.tied && policy.pp > 1 ? static_cast<double>(shape.vocab * shape.hidden) / policy.tp
                                          : shape.head_parameters() / policy.tp;
    }
    input.pieces.push_back(t);
  }
  for (size_t k = 0; k < input.stages.size(); ++k)
    add_replica_traffic(input.stages[k], rates, policy, parameters[k], kernels.element(), kernels.turns(),
                        static_cast<double>(shape.layers) / policy.pp + 2);
  if (policy.pp > 1) {
    input.boundary = port_call(rates.call_cost("sendrecv", 2), kernels.message_bytes());
    input.boundary.alpha_s += rates.wakeup_s();
  }
  input.num_replicas = 1;  // only one replica is simulated, because all replicas are equal and share the cores equally
  input.overlap_sums = false;  // no overlap: gradient reduction runs on the cores that backward needs
  input.step_s = rates.step_s();
  // A device of the simulation represents all ranks of a stage. Each rank has its own threads; all share the cores.
  const int ranks = policy.world();
  input.cores = rates.cores();
  input.ranks_of_device = static_cast<double>(ranks) / policy.pp;
  input.threads_of_rank = rates.threads();
  return input;
}

Estimate espalier_estimate(const ModelShape& shape, const Cluster& cluster, const Policy& policy) {
  const StepInput input = espalier_step_input(shape, cluster, policy);
  const StepSimulation step = simulate_step(input);
  Estimate e;
  e.parameters = shape.parameters();
  e.active_parameters = shape.active_parameters();
  e.memory = memory_of(shape, cluster, policy);
  e.step_s = step.step_s;
  e.compute_s = step.compute_s;
  e.bubble_s = step.bubble_s;
  e.bubble = step.bubble;
  e.exposed_s = step.exposed_s;
  e.optimizer_s = step.update_s;
  const double tokens = static_cast<double>(policy.global_batch * shape.seq);
  const double attention = 12 * static_cast<double>(shape.layers * shape.seq * shape.hidden) * (shape.causal ? 0.5 : 1);
  e.flops = tokens * (6 * shape.active_parameters() + attention);
  e.hardware_flops =
      e.flops * (policy.recompute == RecomputePolicy::full ? 1 + policy.recomputed_share(shape.layers) / 3 : 1);
  e.tokens_per_s = tokens / e.step_s;
  e.tflops_per_gpu = e.flops / e.step_s / policy.world() / 1e12;
  const double peak = cluster.processor.fp32_flops;
  if (peak > 0) e.mfu = e.flops / e.step_s / peak, e.hfu = e.hardware_flops / e.step_s / peak;
  const double error = step_error(shape, cluster, policy);
  e.low_s = (1 - error) * e.step_s;
  e.high_s = (1 + error) * e.step_s;
  const MemoryFit fit = memory_fit(e.memory, cluster, policy);
  e.fits = fit.fits();
  if (!e.fits)
    e.reasons.push_back(fmt::format("{} ranks need {:.1f} GB in total; the machine has {:.1f} GB", policy.world(),
                                    fit.needed / 1e9, fit.capacity / 1e9));
  return e;
}

}  // namespace esp::plan
