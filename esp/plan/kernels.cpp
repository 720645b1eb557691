#include "esp/plan/kernels.h"

#include <algorithm>
#include <cmath>

namespace esp::plan {
namespace {

// GEMM tile sizes relative to the chip's best tile, and the fraction of the best tile's rate that each reaches. Smaller
// tiles reuse less data.
struct Tile {
  double m, n, rate;
};
constexpr Tile kTiles[] = {{2, 1, 1.0}, {1, 2, 1.0}, {1, 1, 0.94}, {1, 0.5, 0.80}, {0.5, 1, 0.80}, {0.5, 0.5, 0.62}};
constexpr double kSplits[] = {1, 2, 4, 8};

// number of queries at which fused attention reaches half of its rate, because its load pipeline is half filled
constexpr double kHalfQueries = 600;
constexpr double kBackwardFlops = 2.5;  // backward has five GEMMs where forward has two
// Exposed fraction of the loads and stores of a grouped GEMM. Fitted to rates measured on a B200 with 128, 256, 512 and
// 1024 rows per group: 0.20, 0.30, 0.39 and 0.44 of the peak. A single GEMM with as many rows reaches 0.49 (SimuMax's
// published tables, 2026).
constexpr double kGroupedShown = 0.5;

double quantised(double size, double tile) {
  return std::ceil(size / tile);
}

}  // namespace

ProcessorRates processor_rates(const Processor& processor, const std::string& precision) {
  const Efficiency& e = processor.efficiency;
  ProcessorRates r;
  const bool eight = precision == "fp8" || precision == "fp4";
  const double peak = processor.flops(precision);
  r.gemm = peak * (eight ? e.gemm_fp8_peak : e.gemm_peak) * e.sustained;
  double wide_inputs = peak;
  if (eight) wide_inputs = processor.bf16_flops > 0 ? processor.bf16_flops : processor.fp16_flops;
  r.gemm16 = wide_inputs * e.gemm_peak * e.sustained;
  r.attention_forward = wide_inputs * e.attention_forward * e.sustained;
  r.attention_backward = wide_inputs * e.attention_backward * e.sustained;
  r.bandwidth = processor.memory_bandwidth * e.memory;
  r.launch_s = e.launch_us * 1e-6;
  r.tile_m = e.tile_m;
  r.tile_n = e.tile_n;
  r.depth = e.gemm_depth;
  r.multiprocessors = processor.kind == "gpu" ? processor.multiprocessors : 0;
  r.input_bytes = eight ? 1 : precision == "fp32" || precision == "tf32" ? 4 : 2;
  r.element_bytes = precision == "fp32" || precision == "tf32" ? 4 : 2;
  return r;
}

// FlashAttention 2 (2023) reports for an A100: 30 to 40 % of the peak for generation 1, up to 73 % for generation 2.
// For an H100 it reports 35 % for generation 2 (forward and backward, at full clocks: attention is less power-limited
// than GEMMs). FlashAttention 3 (2024) reports 75 % of an H100's peak.
double attention_share(const Processor& processor, int generation) {
  const bool blackwell = processor.fp4_flops > 0, hopper = !blackwell && processor.fp8_flops > 0;
  if (generation >= 3 || processor.kind != "gpu") return 1;
  if (generation == 2) return blackwell ? 0.35 : hopper ? 0.64 : 1;
  return blackwell ? 0.25 : hopper ? 0.42 : 0.69;
}

double alignment(double elements) {
  const auto n = static_cast<int64_t>(elements);
  if (n % 64 == 0) return 1;
  if (n % 32 == 0) return 0.85;
  if (n % 16 == 0) return 0.78;
  if (n % 8 == 0) return 0.70;
  if (n % 2 == 0) return 0.50;
  return 0.40;
}

double gemm_s(const ProcessorRates& r, const Gemm& p) {
  if (p.m <= 0 || p.n <= 0 || p.k <= 0 || p.batch <= 0) return 0;
  const double input = p.wide_inputs ? r.element_bytes : r.input_bytes;
  const double bytes = p.batch * (input * (p.m * p.k + p.k * p.n) + p.out_bytes * p.m * p.n);
  const double rate = p.wide_inputs ? r.gemm16 : r.gemm;
  const double moving = bytes / r.bandwidth;
  if (r.multiprocessors <= 0) return r.launch_s + std::max(moving, 2 * p.batch * p.m * p.n * p.k / rate);
  const double each = rate / r.multiprocessors * alignment(p.n) * alignment(p.k);
  // Loading the first operands and storing the result do not overlap the arithmetic of a tile.
  const double depth = r.depth * rate / r.gemm16;
  double best = 0;
  for (const Tile& tile : kTiles) {
    const double tm = tile.m * r.tile_m, tn = tile.n * r.tile_n;
    const double tiles = p.batch * quantised(p.m, tm) * quantised(p.n, tn);
    const double one = 2 * tm * tn / (each * tile.rate);
    for (const double split : kSplits) {
      // Split-k fills a partial wave, but needs an extra pass over the partial results.
      if (split > 1 && tiles * split > 2 * r.multiprocessors) break;
      const double waves = std::ceil(tiles * split / r.multiprocessors);
      double time = waves * one * (p.k / split + depth);
      if (split > 1) time += 8 * p.batch * p.m * p.n * split / r.bandwidth;
      if (best == 0 || time < best) best = time;
    }
  }
  return r.launch_s + std::max(moving, best) + (p.grouped ? kGroupedShown * std::min(moving, best) : 0);
}

double stream_s(const ProcessorRates& r, double bytes, double kernels) {
  return bytes / r.bandwidth + kernels * r.launch_s;
}

double attention_flops(const Attention& a) {
  const double pairs = a.queries * a.keys * (a.causal ? 0.5 : 1.0);
  return 2 * a.batch * a.heads * pairs * (a.qk_dim + a.v_dim);
}

namespace {

// Fraction of multiprocessors in use. Each works on 128 queries of one head, so short sequences and few or narrow heads
// leave some idle.
double fill(const ProcessorRates& r, const Attention& a) {
  const double length = a.queries / (a.queries + kHalfQueries);
  const double width = std::min(1.0, 0.5 + 0.5 * std::min(a.qk_dim, a.v_dim) / 128);
  if (r.multiprocessors <= 0) return length * width;
  const double blocks = a.batch * a.heads * std::ceil(a.queries / 128);
  const double waves = blocks / r.multiprocessors;
  return length * width * std::min(1.0, waves / std::ceil(waves) + 0.15);
}

}  // namespace

double flash_forward_s(const ProcessorRates& r, const Attention& a) {
  const double bytes =
      2 * a.batch * (a.queries * a.heads * (a.qk_dim + a.v_dim) + a.keys * a.kv_heads * (a.qk_dim + a.v_dim));
  return r.launch_s + std::max(bytes / r.bandwidth, attention_flops(a) / (r.attention_forward * fill(r, a)));
}

double flash_backward_s(const ProcessorRates& r, const Attention& a) {
  const double bytes = 4 * a.batch * (a.queries * a.heads + a.keys * a.kv_heads) * (a.qk_dim + a.v_dim);
  return 2 * r.launch_s +
         std::max(bytes / r.bandwidth, kBackwardFlops * attention_flops(a) / (r.attention_backward * fill(r, a)));
}

}  // namespace esp::plan
