#include "esp/plan/estimate.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/parallel/layout.h"
#include "esp/plan/data_traffic.h"
#include "esp/plan/layers.h"
#include "esp/plan/own_time.h"
#include "esp/plan/pipeline_time.h"
#include "esp/plan/software.h"
#include "esp/plan/states.h"

namespace esp::plan {
namespace {

// The kinds of layers a model has, each timed once; with ZeRO 3's traffic, recomputed and not.
struct Kind {
  LayerTime time;
  Gathered plain, again;
};
struct Kinds {
  Kind dense, expert, across;
  bool has_expert = false;
};

Kind kind_like(const Setting& s, int64_t layer, bool experts, bool attends_across) {
  Kind k;
  k.time = layer_time(s, experts, attends_across);
  const Held held = held_layer(s.shape, s.policy, layer);
  k.plain =
      gathered_layer(s, k.time, held, s.policy.recompute == Recompute::full ? Recompute::none : s.policy.recompute);
  k.again = gathered_layer(s, k.time, held, s.policy.recompute);
  return k;
}

Kinds kinds_of(const Setting& s) {
  Kinds k;
  const int64_t layers = s.shape.layers;
  k.has_expert = s.shape.num_expert_layers() > 0;
  if (s.shape.num_expert_layers() < layers) {
    int64_t plain = 0;
    while (plain + 1 < layers && s.shape.has_experts(plain)) ++plain;
    k.dense = kind_like(s, plain, false, false);
  }
  if (k.has_expert) {
    int64_t first = 0;
    while (first + 1 < layers && !s.shape.has_experts(first)) ++first;
    k.expert = kind_like(s, first, true, false);
  }
  if (s.shape.arch == "t5") k.across = kind_like(s, layers - 1, false, true);
  return k;
}

const Kind& kind_of(const Setting& s, const Kinds& kinds, int layer) {
  if (kinds.has_expert && s.shape.has_experts(layer)) return kinds.expert;
  if (s.shape.arch == "t5" && layer >= s.shape.layers / 2) return kinds.across;
  return kinds.dense;
}

// Of a piece's layers, how many are recomputed: a stage's number spread over its chunks.
int recomputed(const Policy& p, int layers, int chunks) {
  if (p.recompute != Recompute::full) return 0;
  return p.recompute_layers < 0 ? layers : std::min(layers, (p.recompute_layers + chunks - 1) / chunks);
}

std::vector<StageTime> piece_times(const Setting& s, const Pieces& pieces, const Kinds& kinds) {
  const Policy& p = s.policy;
  std::vector<StageTime> times(static_cast<size_t>(pieces.count()));
  const double stride = static_cast<double>(p.tp) * p.cp * p.dp;
  const double divided = p.sequence || s.software.divided_messages ? p.tp : 1;
  const double message = s.tokens() * static_cast<double>(s.shape.hidden) * s.rates.element_bytes / divided;
  const double hop = p.pp > 1 ? send(s.cluster, stride, message).time_s : 0;
  const EndTime front = embedding_time(s), back = head_time(s);
  const int last = pieces.count() - 1;
  for (int i = 0; i <= last; ++i) {
    StageTime& t = times[static_cast<size_t>(i)];
    const int begin = pieces.first[static_cast<size_t>(i)], size = pieces.layers[static_cast<size_t>(i)];
    const int again = recomputed(p, size, pieces.chunks);
    for (int j = 0; j < size; ++j) {
      const Kind& kind = kind_of(s, kinds, begin + j);
      const Gathered& units = j < again ? kind.again : kind.plain;
      t.forward += units.forward;
      t.backward += units.backward;
      t.weights += kind.time.weights;
    }
    const bool everywhere = p.vocab_parallel_pipeline;
    if (i == 0 || (everywhere && i < p.pp)) {
      t.forward += front.forward;
      t.weights += front.weights;
    }
    if (i == last || (everywhere && i >= last - p.pp + 1)) {
      t.forward += back.forward;
      t.backward += back.backward;
      t.weights += back.weights;
    }
    t.send_s = hop;
  }
  return times;
}

// Traffic of one axis of all layers of the slowest stage, as rows of the report.
void add_rows(std::vector<Traffic>& to, const char* group, const char* op, const LayerTraffic& t, const Group& where,
              double times, bool again) {
  const double bytes = t.bytes.forward * (again ? 2 : 1) + t.bytes.backward;
  if (bytes <= 0) return;
  Traffic row{group, op, crosses(where) ? "across" : "inside", bytes * times, 0, 0};
  row.time_s = (t.time.forward * (again ? 2 : 1) + t.time.backward) * times;
  row.exposed_s = (t.exposed.forward * (again ? 2 : 1) + t.exposed.backward) * times;
  to.push_back(row);
}

double model_flops(const Shape& s, const Policy& p) {
  const double tokens = static_cast<double>(p.global_batch) * static_cast<double>(s.seq);
  if (s.layers == 0) return 6 * s.given_parameters * tokens;
  const double products =
      s.active_parameters() - s.embedding_parameters() + (s.tied ? static_cast<double>(s.vocab * s.hidden) : 0);
  const double width = static_cast<double>(s.head_dim > 0 ? s.head_dim * s.heads : s.hidden);
  return tokens * (6 * products + 12 * static_cast<double>(s.layers * s.seq) * width * (s.causal ? 0.5 : 1));
}

// How far four of five predictions of a kind are off at most: dense ones of known systems 8 %, and half as much again
// for systems never seen; what has more mechanisms at once more.
double spread(const Shape& shape, const Policy& policy) {
  double q = 0.12;
  if (policy.zero >= 3) q += 0.03;
  if (shape.experts > 0) q += 0.08;
  if (policy.cp > 1 || policy.precision == "fp8") q += 0.03;
  if (policy.offload != Offload::none) q += 0.15;
  return q;
}

constexpr double kFragmented = 1.02;

void warn(const Setting& s, Estimate& e) {
  const Memory& m = e.memory;
  const double room = s.cluster.processor.memory_bytes;
  // The allocator gives back what it only reserves before it fails; what fragments beyond repair is little.
  const double needed = kFragmented * m.allocated() + m.other;
  if (room > 0 && needed > room) {
    e.fits = false;
    e.reasons.push_back(
        fmt::format("stage {} needs {:.1f} GB of {:.1f}: states {:.1f}, activations {:.1f}, buffers {:.1f}, "
                    "fragments and context {:.1f}",
                    m.stage, needed / 1e9, room / 1e9, m.states() / 1e9, m.activation / 1e9, m.buffer / 1e9,
                    (needed - m.allocated()) / 1e9));
  }
  if (crosses(s.tensor)) {
    double shown = 0;
    for (const Traffic& t : e.traffic)
      if (t.group == "tp") shown += t.exposed_s;
    e.reasons.push_back(
        fmt::format("tensor groups of {} span {} nodes: {:.2f} s of the step's {:.2f} s go there; "
                    "tp = {} stays inside",
                    s.policy.tp, s.tensor.domains, shown, e.step_s, s.cluster.domain));
  }
}

// What the rate itself cannot tell: an arch known by its count alone.
void opaque_time(const Setting& s, Estimate& e) {
  const double each = e.hardware_flops / s.policy.world();
  e.compute_s = each / (s.rates.product * 0.8);
  e.step_s = e.compute_s;
}

}  // namespace

std::vector<StageTime> stage_times(const Shape& shape, const Cluster& cluster, const Policy& policy) {
  const Setting s(shape, cluster, policy);
  return piece_times(s, pieces_of(shape, policy), kinds_of(s));
}

Estimate estimate(const Shape& shape, const Cluster& cluster, const Policy& policy) {
  if (is_own(cluster, policy)) return own_estimate(shape, cluster, policy);
  const Setting s(shape, cluster, policy);
  Estimate e;
  e.parameters = shape.parameters();
  e.active_parameters = shape.active_parameters();
  e.memory = memory_of(shape, cluster, policy);
  e.flops = model_flops(shape, policy);
  e.hardware_flops = e.flops * (policy.recompute == Recompute::full ? 4.0 / 3 : 1);
  if (shape.layers == 0 || shape.seq == 0) {
    opaque_time(s, e);
  } else {
    const Kinds kinds = kinds_of(s);
    const Pieces pieces = pieces_of(shape, policy);
    const std::vector<StageTime> times = piece_times(s, pieces, kinds);
    const PipelineTime pipe = pipeline_time(policy, pieces, times);
    const double m = s.micro_batches();
    // Traffic of a stage with most layers.
    const double layers = std::ceil(static_cast<double>(shape.layers) / policy.pp), count = m * layers;
    const LayerTime& typical = (kinds.has_expert ? kinds.expert : kinds.dense).time;
    const bool again = policy.recompute == Recompute::full;
    add_rows(e.traffic, "tp", policy.sequence ? "all_gather" : "all_reduce", typical.tensor, s.tensor, count, again);
    add_rows(e.traffic, "cp",
             policy.context == "ring"      ? "send"
             : policy.context == "ulysses" ? "all_to_all"
                                           : "all_gather",
             typical.context, s.context, count, again);
    add_rows(e.traffic, "ep", "all_to_all", typical.expert, s.expert, count, again);
    if (policy.pp > 1) {
      const double stride = static_cast<double>(policy.tp) * policy.cp * policy.dp;
      const double divided = policy.sequence || s.software.divided_messages ? policy.tp : 1;
      const double bytes = s.tokens() * static_cast<double>(shape.hidden) * s.rates.element_bytes / divided;
      Traffic row{"pp", "send",      stride < cluster.domain ? "inside" : "across", 2 * m * pieces.chunks * bytes,
                  0,    pipe.sending};
      row.time_s = 2 * m * pieces.chunks * times[0].send_s;
      e.traffic.push_back(row);
    }
    StageTime slowest;
    for (const StageTime& t : times)
      if (t.backward + t.weights + t.forward > slowest.backward + slowest.weights + slowest.forward) slowest = t;
    const DataTraffic data = data_traffic(s, slowest, pieces.chunks);
    for (const Traffic& row : data.rows) e.traffic.push_back(row);
    e.optimizer_s = data.update_s + s.software.step_s;
    e.offload_s = data.offload_s;
    e.bubble_s = pipe.bubble;
    e.bubble = pipe.busy > 0 ? pipe.bubble / pipe.busy : 0;
    for (const Traffic& row : e.traffic) e.exposed_s += row.exposed_s;
    e.step_s = pipe.total + data.exposed_s + e.optimizer_s + e.offload_s;
    e.compute_s = e.step_s - e.bubble_s - e.exposed_s - e.optimizer_s - e.offload_s;
  }
  const double q = spread(shape, policy);
  e.low_s = e.step_s * (1 - q);
  e.high_s = e.step_s * (1 + q);
  if (e.step_s > 0) {
    const double world = policy.world(), peak = cluster.processor.flops(policy.precision);
    e.tokens_per_s = static_cast<double>(policy.global_batch * shape.seq) / e.step_s;
    e.tflops_per_gpu = e.flops / e.step_s / world / 1e12;
    e.mfu = e.flops / e.step_s / world / peak;
    e.hfu = e.hardware_flops / e.step_s / world / peak;
  }
  warn(s, e);
  return e;
}

double lower_bound_s(const Shape& shape, const Cluster& cluster, const Policy& policy) {
  const Rates r = rates_of(cluster.processor, policy.precision);
  double flops = model_flops(shape, policy);
  if (policy.recompute == Recompute::full && shape.layers > 0) {  // once more the layers, not the head
    const double tokens = static_cast<double>(policy.global_batch) * static_cast<double>(shape.seq);
    const double layers = flops - 6 * tokens * static_cast<double>(shape.vocab * shape.hidden);
    const double share = policy.recompute_layers < 0 ? 1
                                                     : std::min(1.0, static_cast<double>(policy.recompute_layers) *
                                                                         policy.pp / static_cast<double>(shape.layers));
    flops += layers / 3 * share;
  }
  return flops / policy.world() / std::max({r.product, r.product16, r.attention_forward});
}

}  // namespace esp::plan
