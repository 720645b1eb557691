#include "esp/plan/estimate.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string_view>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/plan/espalier_time.h"
#include "esp/plan/piece_time.h"
#include "esp/plan/pipeline_time.h"
#include "esp/plan/software.h"
#include "esp/plan/states.h"

namespace esp::plan {
namespace {

double model_flops(const ModelShape& s, const Policy& p) {
  const double tokens = static_cast<double>(p.global_batch) * static_cast<double>(s.seq);
  if (s.layers == 0) return 6 * s.given_parameters * tokens;
  const double products =
      s.active_parameters() - s.embedding_parameters() + (s.tied ? static_cast<double>(s.vocab * s.hidden) : 0);
  double width = static_cast<double>(s.head_dim > 0 ? s.head_dim * s.heads : s.hidden);
  if (s.kv_lora > 0) {  // latent attention: keys and values have different widths, so the mean is used
    const double each = width / static_cast<double>(std::max<int64_t>(1, s.heads));
    const double value = s.v_dim > 0 ? static_cast<double>(s.v_dim) : each;
    width = static_cast<double>(s.heads) * (each + static_cast<double>(s.rope_dim) + value) / 2;
  }
  return tokens * (6 * products + 12 * static_cast<double>(s.layers * s.seq) * width * (s.causal ? 0.5 : 1));
}

// FLOPs of a step including full recomputation. Only layers are recomputed, not the head.
double executed_flops(const ModelShape& s, const Policy& p) {
  const double flops = model_flops(s, p);
  if (p.recompute != RecomputePolicy::full || s.layers == 0) return flops;
  const double tokens = static_cast<double>(p.global_batch) * static_cast<double>(s.seq);
  const double layers = flops - 6 * tokens * static_cast<double>(s.vocab * s.hidden);
  return flops + layers / 3 * p.recomputed_share(s.layers);
}

// Software and chip generations whose constants were fitted to a published table.
struct ValidatedSoftware {
  std::string_view software;
  bool eight_bits;  // true: chips with fp8 GEMMs (Hopper); false: chips without (Ampere)
};
constexpr ValidatedSoftware kValidated[] = {
    {"megatron-2021", false}, {"megatron-2022", false}, {"internevo", false}, {"megatron-core", true}};

bool is_validated(const Cluster& cluster, const Policy& policy) {
  const bool eight_bits = cluster.processor.fp8_flops > 0;
  return std::any_of(std::begin(kValidated), std::end(kValidated), [&](const ValidatedSoftware& one) {
    return one.software == policy.software && one.eight_bits == eight_bits;
  });
}

constexpr double kEspalierError = 0.15;  // relative error of Espalier's own runs on a calibrated machine

void add_warnings(const EstimateContext& s, Estimate& e) {
  const Memory& m = e.memory;
  const MemoryFit fit = memory_fit(m, s.cluster, s.policy);
  if (!fit.fits()) {
    e.fits = false;
    e.reasons.push_back(
        fmt::format("stage {} needs {:.1f} GB of {:.1f}: states {:.1f}, activations {:.1f}, buffers {:.1f}, "
                    "context {:.1f}, fragmentation {:.1f}",
                    m.stage, fit.needed / 1e9, fit.capacity / 1e9, m.states() / 1e9, m.activation / 1e9, m.buffer / 1e9,
                    m.other / 1e9, m.slack / 1e9));
  }
  const double host = s.cluster.host_memory_bytes, moved = m.host * std::min(s.cluster.per_node, s.policy.world());
  if (host > 0 && moved > host) {
    e.fits = false;
    e.reasons.push_back(
        fmt::format("offloaded states need {:.0f} GB per node; the host has {:.0f} GB", moved / 1e9, host / 1e9));
  }
  if (spans_domains(s.tensor)) {
    double exposed = 0;
    for (const GroupTraffic& t : e.traffic)
      if (t.group == "tp") exposed += t.exposed_s;
    e.reasons.push_back(fmt::format(
        "tensor groups of {} span {} nodes: their traffic takes {:.2f} s of the step's {:.2f} s. Try tp = {}",
        s.policy.tp, s.tensor.domains, exposed, e.step_s, s.cluster.domain));
  }
}

// Estimates the step time of a model if only its parameter count is known.
void estimate_without_sizes(const EstimateContext& s, Estimate& e) {
  const double each = e.hardware_flops / s.policy.world();
  e.compute_s = each / (s.rates.gemm * 0.8);
  e.step_s = e.compute_s;
}

}  // namespace

MemoryFit memory_fit(const Memory& worst_stage, const Cluster& cluster, const Policy& policy) {
  if (uses_calibrated_rates(cluster, policy))
    return {worst_stage.total() * policy.world(), cluster.host_memory_bytes, true};
  return {worst_stage.total(), cluster.processor.memory_bytes, false};
}

// Derived from the residuals of published rows: 4.2 % for dense models if software and chip were fitted, 12 % for other
// software, and more for each additional mechanism.
double step_error(const ModelShape& shape, const Cluster& cluster, const Policy& policy) {
  if (uses_calibrated_rates(cluster, policy)) return kEspalierError;
  double q = is_validated(cluster, policy) ? 0.042 : 0.12;
  if (shape.experts > 0) q += 0.08;
  if (policy.cp > 1) q += 0.06;
  if (policy.schedule != "1f1b" && policy.schedule != "interleaved" && policy.pp > 1) q += 0.04;
  if (policy.precision == "fp8") q += 0.02;
  if (policy.offload != OffloadTarget::none) q += 0.15;
  return q;
}

std::vector<StageTime> stage_times(const ModelShape& shape, const Cluster& cluster, const Policy& policy) {
  const EstimateContext s(shape, cluster, policy);
  return piece_times(s, pipeline_pieces(shape, policy), kinds_of(s));
}

Estimate estimate(const ModelShape& shape, const Cluster& cluster, const Policy& policy) {
  if (uses_calibrated_rates(cluster, policy)) return espalier_estimate(shape, cluster, policy);
  const EstimateContext s(shape, cluster, policy);
  Estimate e;
  e.parameters = shape.parameters();
  e.active_parameters = shape.active_parameters();
  e.memory = memory_of(shape, cluster, policy);
  e.flops = model_flops(shape, policy);
  e.hardware_flops = executed_flops(shape, policy);
  if (shape.layers == 0 || shape.seq == 0) {
    estimate_without_sizes(s, e);
  } else {
    const LayerKinds kinds = kinds_of(s);
    const PipelinePieces pieces = pipeline_pieces(shape, policy);
    const std::vector<StageTime> times = piece_times(s, pieces, kinds);
    const PipelineTime pipe = pipeline_time(policy, pieces, times);
    const StageTraffic traffic = stage_traffic(s, pieces, kinds, pipe.slowest, pipe.sending);
    e.traffic = traffic.rows;
    StageTime slowest;  // times of the slowest piece
    for (const StageTime& t : times)
      if (t.backward + t.weights + t.forward > slowest.backward + slowest.weights + slowest.forward) slowest = t;
    DataTraffic data = data_traffic(s, slowest, pieces.chunks);
    // The piece times contain the exposed all-gathers and reduce-scatters of ZeRO 3. Here they are reported in a row.
    if (traffic.exposed_units_s > 0 && !data.rows.empty()) {
      GroupTraffic& units = data.rows[0];
      units.exposed_s += traffic.exposed_units_s;
      units.time_s = std::max(units.time_s, units.exposed_s);
    }
    for (const GroupTraffic& row : data.rows) e.traffic.push_back(row);
    e.optimizer_s = data.update_s + s.software.step_s;
    e.offload_s = data.offload_s;
    e.bubble_s = pipe.bubble;
    e.bubble = pipe.busy > 0 ? pipe.bubble / pipe.busy : 0;
    for (const GroupTraffic& row : e.traffic) e.exposed_s += row.exposed_s;
    e.step_s = pipe.total + data.exposed_s + e.optimizer_s + e.offload_s;
    e.compute_s = e.step_s - e.bubble_s - e.exposed_s - e.optimizer_s - e.offload_s;
  }
  const double q = step_error(shape, cluster, policy);
  e.low_s = e.step_s * (1 - q);
  e.high_s = e.step_s * (1 + q);
  if (e.step_s > 0) {
    const double world = policy.world(), peak = cluster.processor.flops(policy.precision);
    e.tokens_per_s = static_cast<double>(policy.global_batch * shape.seq) / e.step_s;
    e.tflops_per_gpu = e.flops / e.step_s / world / 1e12;
    e.mfu = e.flops / e.step_s / world / peak;
    e.hfu = e.hardware_flops / e.step_s / world / peak;
  }
  add_warnings(s, e);
  return e;
}

double lower_bound_s(const ModelShape& shape, const Cluster& cluster, const Policy& policy) {
  const ProcessorRates r = processor_rates(cluster.processor, policy.precision);
  return executed_flops(shape, policy) / policy.world() / std::max({r.gemm, r.gemm16, r.attention_forward});
}

}  // namespace esp::plan
