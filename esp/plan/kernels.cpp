#include "esp/plan/kernels.h"

#include <algorithm>
#include <cmath>

namespace esp::plan {
namespace {

// Tiles relative to the chip's best, and the fraction of its rate that each reaches: smaller tiles reuse less data.
struct Tile {
  double m, n, rate;
};
constexpr Tile kTiles[] = {{2, 1, 1.0}, {1, 2, 1.0}, {1, 1, 0.94}, {1, 0.5, 0.80}, {0.5, 1, 0.80}, {0.5, 0.5, 0.62}};
constexpr double kSplits[] = {1, 2, 4, 8};

// With this many queries the load pipeline of fused attention is half filled.
constexpr double kHalfQueries = 600;
constexpr double kBackwardFlops = 2.5;  // five GEMMs against two
// Grouped GEMMs with 128, 256, 512 and 1024 rows per group reach 0.20, 0.30, 0.39 and 0.44 of a B200's peak, where a
// single GEMM of as many rows reaches 0.49 (SimuMax's published tables, 2026): half of their loads and stores is
// exposed.
constexpr double kGroupedShown = 0.5;

double quantised(double size, double tile) {
  return std::ceil(size / tile);
}

}  // namespace

Rates rates_of(const Processor& processor, const std::string& precision) {
  const Efficiency& e = processor.efficiency;
  Rates r;
  const bool eight = precision == "fp8" || precision == "fp4";
  const double peak = processor.flops(precision);
  r.product = peak * (eight ? e.gemm_fp8_peak : e.gemm_peak) * e.sustained;
  double wide = peak;
  if (eight) wide = processor.bf16_flops > 0 ? processor.bf16_flops : processor.fp16_flops;
  r.product16 = wide * e.gemm_peak * e.sustained;
  r.attention_forward = wide * e.attention_forward * e.sustained;
  r.attention_backward = wide * e.attention_backward * e.sustained;
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

// FlashAttention 2 (2023) reports 30 to 40 % of an A100's peak for the first generation, up to 73 % for the second and
// 35 % of an H100's (both passes, at full clocks: it is less power-limited than GEMMs); FlashAttention 3 (2024) reports
// 75 % there.
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

double gemm_s(const Rates& r, const Gemm& p) {
  if (p.m <= 0 || p.n <= 0 || p.k <= 0 || p.batch <= 0) return 0;
  const double input = p.wide ? r.element_bytes : r.input_bytes;
  const double bytes = p.batch * (input * (p.m * p.k + p.k * p.n) + p.out_bytes * p.m * p.n);
  const double rate = p.wide ? r.product16 : r.product;
  const double moving = bytes / r.bandwidth;
  if (r.multiprocessors <= 0) return r.launch_s + std::max(moving, 2 * p.batch * p.m * p.n * p.k / rate);
  const double each = rate / r.multiprocessors * alignment(p.n) * alignment(p.k);
  // Fetching the first operands and writing the result take time independent of the arithmetic.
  const double depth = r.depth * rate / r.product16;
  double best = 0;
  for (const Tile& tile : kTiles) {
    const double tm = tile.m * r.tile_m, tn = tile.n * r.tile_n;
    const double tiles = p.batch * quantised(p.m, tm) * quantised(p.n, tn);
    const double one = 2 * tm * tn / (each * tile.rate);
    for (const double split : kSplits) {
      // Split-k fills a partial wave, at the cost of a pass over the partial results.
      if (split > 1 && tiles * split > 2 * r.multiprocessors) break;
      const double waves = std::ceil(tiles * split / r.multiprocessors);
      double time = waves * one * (p.k / split + depth);
      if (split > 1) time += 8 * p.batch * p.m * p.n * split / r.bandwidth;
      if (best == 0 || time < best) best = time;
    }
  }
  return r.launch_s + std::max(moving, best) + (p.grouped ? kGroupedShown * std::min(moving, best) : 0);
}

double stream_s(const Rates& r, double bytes, double kernels) {
  return bytes / r.bandwidth + kernels * r.launch_s;
}

double attention_flops(const Attention& a) {
  const double pairs = a.queries * a.keys * (a.causal ? 0.5 : 1.0);
  return 2 * a.batch * a.heads * pairs * (a.qk_dim + a.v_dim);
}

namespace {

// Blocks of 128 queries of one head are assigned to multiprocessors; short sequences and narrow heads leave some idle.
double fill(const Rates& r, const Attention& a) {
  const double length = a.queries / (a.queries + kHalfQueries);
  const double width = std::min(1.0, 0.5 + 0.5 * std::min(a.qk_dim, a.v_dim) / 128);
  if (r.multiprocessors <= 0) return length * width;
  const double blocks = a.batch * a.heads * std::ceil(a.queries / 128);
  const double waves = blocks / r.multiprocessors;
  return length * width * std::min(1.0, waves / std::ceil(waves) + 0.15);
}

}  // namespace

double flash_forward_s(const Rates& r, const Attention& a) {
  const double bytes =
      2 * a.batch * (a.queries * a.heads * (a.qk_dim + a.v_dim) + a.keys * a.kv_heads * (a.qk_dim + a.v_dim));
  return r.launch_s + std::max(bytes / r.bandwidth, attention_flops(a) / (r.attention_forward * fill(r, a)));
}

double flash_backward_s(const Rates& r, const Attention& a) {
  const double bytes = 4 * a.batch * (a.queries * a.heads + a.keys * a.kv_heads) * (a.qk_dim + a.v_dim);
  return 2 * r.launch_s +
         std::max(bytes / r.bandwidth, kBackwardFlops * attention_flops(a) / (r.attention_backward * fill(r, a)));
}

}  // namespace esp::plan
