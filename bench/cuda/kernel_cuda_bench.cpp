// Times GPU kernels and compares them with their limits. Memory-bound kernels: bytes per second, compared with the rate
// of a copy. GEMMs and attention: operations per second. Prints Markdown tables.
//
//   kernel_cuda_bench [memory|link|gemm|block|fp8|attention] …      all tables without an argument
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "esp/device/gpu.h"
#include "esp/kernel/activation.h"
#include "esp/kernel/attention.h"
#include "esp/kernel/cross_entropy.h"
#include "esp/kernel/cuda/activation_backward.h"
#include "esp/kernel/cuda/attention_settings.h"
#include "esp/kernel/cuda/device_scalars.h"
#include "esp/kernel/cuda/fp8.h"
#include "esp/kernel/cuda/gemm_settings.h"
#include "esp/kernel/cuda/norm_backward.h"
#include "esp/kernel/dropout.h"
#include "esp/kernel/elementwise.h"
#include "esp/kernel/embedding.h"
#include "esp/kernel/gemm.h"
#include "esp/kernel/norm.h"
#include "esp/kernel/optimizer_step.h"
#include "esp/kernel/softmax.h"
#include "esp/kernel/weighted_sum.h"

namespace esp::kernel {
namespace {

constexpr device::Device kGpu{device::DeviceKind::cuda, 0};

class Bench {
 public:
  Bench() : memory_(device::gpu_memory(kGpu)), queue_(kGpu), stream(queue_.stream()) {}
  ~Bench() {
    device::finish(stream);
    for (auto [data, bytes] : taken_) memory_->give(data, bytes);
  }

  // Arrays of random values. The integers are below `top`; `num_distinct` receives the number of distinct values.
  void* floats(int64_t count, DType dtype, double spread = 1) {
    std::byte* data = raw(static_cast<size_t>(count) * size_of(dtype));
    fill_normal(data, 0, spread, 1, static_cast<uint64_t>(taken_.size()), 0, count, dtype, stream);
    return data;
  }
  int32_t* integers(int64_t count, int32_t top, double* num_distinct = nullptr) {
    std::vector<int32_t> host(static_cast<size_t>(count));
    uint64_t state = 88172645463325252u;
    for (int32_t& one : host) {
      state ^= state << 13, state ^= state >> 7, state ^= state << 17;
      // Token ids of a text are not uniform: here a third of them are among the first 64.
      one = static_cast<int32_t>(state % 3 == 0 ? (state >> 8) % 64 : (state >> 8) % static_cast<uint64_t>(top));
    }
    std::byte* data = raw(host.size() * 4);
    device::copy(data, host.data(), host.size() * 4, stream);
    device::finish(stream);
    std::sort(host.begin(), host.end());
    if (num_distinct) *num_distinct = static_cast<double>(std::unique(host.begin(), host.end()) - host.begin());
    return reinterpret_cast<int32_t*>(data);
  }
  std::byte* raw(size_t bytes) {
    std::byte* data = memory_->take(bytes);
    if (!data) throw std::runtime_error("out of GPU memory");
    taken_.emplace_back(data, bytes);
    return data;
  }
  // Frees everything allocated since the last `keep`.
  void clear() {
    device::finish(stream);
    for (; taken_.size() > kept_; taken_.pop_back()) memory_->give(taken_.back().first, taken_.back().second);
  }
  void keep() { kept_ = taken_.size(); }

  // Milliseconds per call: the median of five runs. Each run has enough calls to take about `about_ms`.
  double time(const std::function<void()>& f, double about_ms = 20) {
    for (int i = 0; i < 3; ++i) f();
    auto run = [&](int times) {
      device::GpuEvent begin(kGpu, true), end(kGpu, true);
      begin.record(stream);
      for (int i = 0; i < times; ++i) f();
      end.record(stream);
      end.finish();
      return end.ms_since(begin) / times;
    };
    const int times = std::clamp(static_cast<int>(about_ms / std::max(run(2), 0.001)), 2, 200);
    std::vector<double> all;
    for (int i = 0; i < 5; ++i) all.push_back(run(times));
    std::sort(all.begin(), all.end());
    return all[2];
  }

 private:
  std::unique_ptr<device::SegmentSource> memory_;
  device::GpuQueue queue_;
  std::vector<std::pair<std::byte*, size_t>> taken_;
  size_t kept_ = 0;

 public:
  device::Stream stream;
};

void memory_bound(Bench& b) {
  constexpr DType kHalf = DType::bf16, kWide = DType::f32;
  const device::Stream& s = b.stream;
  const int64_t rows = 65536, C = 768, V = 50304;
  const double M = static_cast<double>(rows * C) * 2;  // bytes of one activation
  double ceiling = 0;
  const size_t most = size_t{2} << 30;
  fmt::print(
      "| kernel | shape | µs | GB/s | vs copy of 2 GiB | vs copy of the same bytes |\n|---|---|---|---|---|---|\n");
  std::byte *from = b.raw(most), *to = b.raw(most);
  b.keep();
  auto row = [&](const std::string& name, const std::string& shape, double bytes, const std::function<void()>& f) {
    const double ms = b.time(f), rate = bytes / ms / 1e6;
    if (ceiling == 0) ceiling = rate;
    const size_t half = std::min(most, static_cast<size_t>(bytes / 2));
    const double equal = 2.0 * static_cast<double>(half) / b.time([&] { device::copy(to, from, half, s); }) / 1e6;
    fmt::print("| {} | {} | {:.1f} | {:.0f} | {:.2f} | {:.2f} |\n", name, shape, ms * 1e3, rate, rate / ceiling,
               rate / equal);
    std::fflush(stdout);
  };
  row("copy (ceiling)", "2 GiB", 2.0 * static_cast<double>(most), [&] { device::copy(to, from, most, s); });
  const int64_t n = rows * C;
  const std::string wide = fmt::format("{}×{} bf16", rows, C);
  {
    void *x = b.floats(n, kHalf), *y = b.floats(n, kHalf), *z = b.floats(n, kHalf), *sum = b.floats(n, kHalf);
    void *f = b.floats(n, kWide), *gamma = b.floats(C, kHalf), *beta = b.floats(C, kHalf), *g = b.floats(C, kHalf);
    void *mean = b.floats(rows, kWide), *rstd = b.floats(rows, kWide);
    row("fill", wide, M, [&] { fill(x, 0.5, n, kHalf, s); });
    row("cast bf16→f32", wide, 3 * M, [&] { cast(f, kWide, x, kHalf, n, s); });
    row("cast f32→bf16", wide, 3 * M, [&] { cast(x, kHalf, f, kWide, n, s); });
    row("add", wide, 3 * M, [&] { add(z, x, y, n, kHalf, s); });
    row("scale", wide, 2 * M, [&] { scale(z, 0.999, n, kHalf, s); });
    row("add_bias", wide, 2 * M, [&] { add_bias(z, beta, rows, C, kHalf, s); });
    row("add_column_sums", wide, M, [&] { add_column_sums(g, y, rows, C, kHalf, s); });
    row("transpose", wide, 2 * M, [&] { transpose(z, x, 64, 1024, C, kHalf, s); });
    const NormShape layer{NormKind::layer, rows, C, 1e-5}, rms{NormKind::rms, rows, C, 1e-5};
    row("layer norm + residual", wide, 4 * M,
        [&] { norm_forward(z, mean, rstd, sum, x, y, gamma, beta, layer, kHalf, s); });
    row("layer norm", wide, 2 * M,
        [&] { norm_forward(z, mean, rstd, nullptr, x, nullptr, gamma, beta, layer, kHalf, s); });
    row("rms norm + residual", wide, 4 * M,
        [&] { norm_forward(z, nullptr, rstd, sum, x, y, gamma, nullptr, rms, kHalf, s); });
    row("layer norm backward, input, accumulating", wide, 4 * M,
        [&] { norm_backward_input(z, y, x, mean, rstd, gamma, layer, true, kHalf, s); });
    row("layer norm backward, input", wide, 3 * M,
        [&] { norm_backward_input(z, y, x, mean, rstd, gamma, layer, false, kHalf, s); });
    row("layer norm backward, weights", wide, 2 * M,
        [&] { norm_backward_weight(g, beta, y, x, mean, rstd, layer, kHalf, s); });
    for (const int64_t dim : {int64_t{768}, int64_t{1024}, int64_t{1280}, int64_t{1600}, int64_t{2048}}) {
      const int64_t some = dim == 768 ? rows : dim == 1024 ? rows / 2 : rows / 4;
      const NormShape shape{NormKind::layer, some, dim, 1e-5};
      void *all[3], *of_dim[4];
      for (void*& one : all) one = b.floats(some * dim, kHalf);
      for (void*& one : of_dim) one = b.floats(dim, kWide);
      cuda::NormGradients into{.dx = all[0], .dgamma = of_dim[0], .dbeta = of_dim[1], .add_to_dx = true};
      into.dx_sums = of_dim[2];
      row("layer norm backward, all gradients, accumulating", fmt::format("{}×{} bf16", some, dim),
          8.0 * static_cast<double>(some * dim),
          [&] { cuda::norm_backward(into, all[1], all[2], mean, rstd, of_dim[3], shape, kHalf, s); });
    }
    row("dropout + residual", wide, 3 * M, [&] { dropout(z, x, y, {rows, C, 0, 0, 0, 0.1}, {1, 2}, kHalf, s); });
    row("dropout", wide, 2 * M, [&] { dropout(z, x, nullptr, {rows, C, 0, 0, 0, 0.1}, {1, 2}, kHalf, s); });
    void *table = b.floats(V * C, kHalf), *positions = b.floats(1024 * C, kHalf);
    double met = 0;
    int32_t* ids = b.integers(rows, static_cast<int32_t>(V), &met);
    row("embedding + positions", wide, 2 * M,
        [&] { embedding_forward(z, ids, table, positions, rows, C, V, 1024, 0, kHalf, s); });
    row("embedding backward (dy and the rows in use)", wide, M + 2 * met * C * 2,
        [&] { embedding_backward(table, ids, y, rows, C, V, kHalf, s); });
    row("position backward", wide, M, [&] { position_backward(positions, y, rows, C, 1024, 0, kHalf, s); });
    std::byte *q8 = b.raw(static_cast<size_t>(n)), *t8 = b.raw(static_cast<size_t>(n));
    auto* scale8 = reinterpret_cast<cuda::Fp8Scale*>(b.raw(sizeof(cuda::Fp8Scale)));
    const cuda::Fp8Scale fresh;
    device::copy(scale8, &fresh, sizeof fresh, s);
    row("quantise to fp8, with transpose and absolute maximum", wide, 2 * M,
        [&] { cuda::quantize_fp8(q8, t8, x, rows, C, scale8, cuda::Fp8::e4m3, kHalf, s); });
    row("fill_normal", wide, M, [&] { fill_normal(x, 0, 1, 1, 2, 0, n, kHalf, s); });
    b.clear();
  }
  {
    const int64_t m = rows * 4 * C;
    void *x = b.floats(m, kHalf), *y = b.floats(m, kHalf), *z = b.floats(m, kHalf);
    const std::string shape = fmt::format("{}×{} bf16", rows, 4 * C);
    row("gelu", shape, 8 * M, [&] { activation_forward(y, x, m, Activation::gelu, kHalf, s); });
    row("gelu backward", shape, 12 * M, [&] { activation_backward(z, y, x, m, Activation::gelu, false, kHalf, s); });
    row("gelu backward with sums", shape, 12 * M,
        [&] { cuda::activation_backward_fused(z, x, false, rows, 4 * C, Activation::gelu, y, false, kHalf, s); });
    row("gelu backward with output and sums", shape, 16 * M,
        [&] { cuda::activation_backward_fused(z, x, true, rows, 4 * C, Activation::gelu, y, false, kHalf, s); });
    row("silu", shape, 8 * M, [&] { activation_forward(y, x, m, Activation::silu, kHalf, s); });
    const int64_t half = 2 * C;
    row("swiglu", fmt::format("{}×{} bf16", rows, half), 6 * M, [&] { swiglu_forward(y, x, rows, half, kHalf, s); });
    row("swiglu backward", fmt::format("{}×{} bf16", rows, half), 10 * M,
        [&] { swiglu_backward(z, y, x, rows, half, kHalf, s); });
    row("swiglu backward with output", fmt::format("{}×{} bf16", rows, half), 12 * M,
        [&] { cuda::swiglu_backward_fused(y, x, rows, half, kHalf, s); });
    RotaryShape turn;
    turn.rows = rows, turn.row_stride = 3 * C, turn.heads = 24, turn.head_dim = 64, turn.period = 1024;
    row("rotary (q and k)", fmt::format("{}×24×64 of ×36×64 bf16", rows), 4 * M, [&] { rotary(x, turn, kHalf, s); });
    const SoftmaxShape soft{96 * 1024, 1024, 1024, 1024, false};
    row("softmax", "98304×1024 bf16", 2.0 * 98304 * 1024 * 2, [&] { softmax_forward(z, soft, kHalf, s); });
    row("softmax backward", "98304×1024 bf16", 3.0 * 98304 * 1024 * 2, [&] { softmax_backward(z, x, soft, kHalf, s); });
    b.clear();
  }
  {
    const int64_t tokens = 16384;
    void *logits = b.floats(tokens * V, kHalf), *losses = b.floats(tokens, kWide), *lse = b.floats(tokens, kWide);
    int32_t* targets = b.integers(tokens, 50257);
    const double bytes = static_cast<double>(tokens * V) * 2;
    row("cross entropy, fused", "16384×50304 bf16", 2 * bytes,
        [&] { cross_entropy_fused(losses, logits, targets, 1e-4, tokens, V, V, kHalf, s); });
    row("cross entropy, fused, 50257 of 50304", "16384×50304 bf16", 2 * bytes,
        [&] { cross_entropy_fused(losses, logits, targets, 1e-4, tokens, 50257, V, kHalf, s); });
    row("cross entropy forward", "16384×50304 bf16", bytes,
        [&] { cross_entropy_forward(losses, lse, logits, targets, tokens, V, V, kHalf, s); });
    row("cross entropy backward", "16384×50304 bf16", 2 * bytes,
        [&] { cross_entropy_backward(logits, lse, targets, 1e-4, tokens, V, V, kHalf, s); });
    b.clear();
  }
  {
    const int64_t params = 124439808;
    const auto P = static_cast<double>(params);
    void *master = b.floats(params, kWide, 0.02), *m = b.floats(params, kWide, 1e-3), *v = b.floats(params, kWide, 0);
    void *weights = b.floats(params, kHalf, 0.02), *grad = b.floats(params, kHalf, 0.01),
         *other = b.floats(params, kWide);
    const StepBuffers buffers{master, weights, grad, m, v, params, kHalf};
    const AdamStep step{.lr = 1e-4, .weight_decay = 0.1, .t = 5};
    row("AdamW, bf16 + fp32 master", "124 M", 28 * P, [&] { adam_step(buffers, step, s); });
    row("AdamW, multi-tensor", "124 M", 28 * P, [&] { cuda::multi_tensor_adam_step({&buffers, 1}, {&step, 1}, s); });
    StepBuffers split = buffers;
    split.master = nullptr, split.lower = static_cast<uint16_t*>(master);
    row("AdamW, multi-tensor, split master weights", "124 M", 26 * P, [&] {
      cuda::multi_tensor_adam_step({&split, 1}, {&step, 1}, s);
    });
    auto* scalars = reinterpret_cast<cuda::StepScalars*>(b.raw(sizeof(cuda::StepScalars)));
    const cuda::StepScalars host{1e-4, 1, 5};
    device::copy(scalars, &host, sizeof host, s);
    row("AdamW, scalars on the device", "124 M", 28 * P, [&] { cuda::adam_step(buffers, step, scalars, s); });
    row("AdamW, stochastic rounding", "124 M", 22 * P, [&] { cuda::adam_step_stochastic(buffers, step, 1, 2, s); });
    row("SGD with momentum", "124 M", 20 * P, [&] { sgd_step(buffers, {.lr = 1e-4, .momentum = 0.9}, s); });
    auto* total = reinterpret_cast<double*>(b.raw(8));
    row("sum of squares, bf16", "124 M", 2 * P, [&] { cuda::sum_of_squares_to(total, false, grad, params, kHalf, s); });
    row("sum of squares, f32", "124 M", 4 * P, [&] { cuda::sum_of_squares_to(total, false, other, params, kWide, s); });
    const WeightedTerm terms[] = {{master, 0.5}, {other, 0.5}};
    row("weighted sum of two, f32", "124 M", 12 * P, [&] { weighted_sum(m, terms, params, kWide, s); });
    b.clear();
  }
}

// Lookup in an embedding table in host memory. Compares a kernel that reads the needed rows over the link with a copy
// of the whole table.
void embedding_over_link(Bench& b) {
  const int64_t V = 50304;
  const auto pinned = device::pinned_memory(kGpu);
  fmt::print(
      "\n| table on the host | tokens | copy of the table, µs | GB/s | rows read in place, µs | GB/s | vs copy rate |\n"
      "|---|---|---|---|---|---|---|\n");
  for (const int64_t C : {int64_t{768}, int64_t{1600}, int64_t{5120}}) {
    const size_t bytes = static_cast<size_t>(V * C) * 2;
    std::byte* const host = pinned->take(bytes);
    if (!host) throw std::runtime_error("out of pinned memory");
    void* const table = b.floats(V * C, DType::bf16);
    device::copy(host, table, bytes, b.stream);
    const double whole = b.time([&] { device::copy(table, host, bytes, b.stream); });
    for (const int64_t tokens : {int64_t{1024}, int64_t{8192}, int64_t{32768}}) {
      void* const y = b.floats(tokens * C, DType::bf16);
      const int32_t* const ids = b.integers(tokens, static_cast<int32_t>(V));
      const double ms =
          b.time([&] { embedding_forward(y, ids, host, nullptr, tokens, C, V, 1, 0, DType::bf16, b.stream); });
      const double copied = static_cast<double>(bytes) / whole / 1e6;
      const double read = static_cast<double>(tokens * C) * 2 / ms / 1e6;
      fmt::print("| {}×{} bf16 | {} | {:.0f} | {:.1f} | {:.0f} | {:.1f} | {:.2f} |\n", V, C, tokens, whole * 1e3,
                 copied, ms * 1e3, read, read / copied);
      std::fflush(stdout);
    }
    b.clear();
    pinned->give(host, bytes);
  }
}

void gemms(Bench& b) {
  struct Case {
    int64_t m, n, k;
    bool ta, tb;
    const char* what;
    Activation activation = Activation::none;
    bool bias = false, kept = false, slope = false, accumulate = false;
    DType dtype = DType::bf16;
  };
  const Case cases[] = {
      {65536, 2304, 768, false, true, "qkv + bias", Activation::none, true},
      {65536, 768, 768, false, true, "projection + bias", Activation::none, true},
      {65536, 3072, 768, false, true, "plain"},
      {65536, 3072, 768, false, true, "up + bias", Activation::none, true},
      {65536, 3072, 768, false, true, "up + bias + gelu, kept", Activation::gelu, true, true},
      {65536, 768, 3072, false, true, "down + bias", Activation::none, true},
      {65536, 3072, 768, false, false, "down, input gradient, × gelu'", Activation::gelu, false, false, true},
      {65536, 768, 3072, false, false, "up, input gradient"},
      {3072, 768, 65536, true, false, "up, weight gradient, accumulating", Activation::none, false, false, false, true},
      {768, 3072, 65536, true, false, "down, weight gradient, accumulating", Activation::none, false, false, false,
       true},
      {2304, 768, 65536, true, false, "qkv, weight gradient, accumulating", Activation::none, false, false, false,
       true},
      {65536, 50304, 768, false, true, "logits"},
      {65536, 768, 50304, false, false, "logits, input gradient"},
      {50304, 768, 65536, true, false, "logits, weight gradient, accumulating", Activation::none, false, false, false,
       true},
      {16384, 6400, 1600, false, true, "1558M up"},
      {16384, 6400, 1600, false, true, "1558M up + bias + gelu, kept", Activation::gelu, true, true},
      {16384, 8192, 2048, false, true, "1.1B up"},
      {8192, 8192, 8192, false, false, "square"},
      {8192, 8192, 8192, false, false, "square", Activation::none, false, false, false, false, DType::f16},
      {4096, 4096, 4096, false, false, "square", Activation::none, false, false, false, false, DType::f32},
  };
  fmt::print(
      "\n| GEMM | m×n×k | µs | TFLOP/s, tuned | TFLOP/s, first of the heuristic | tuned / first "
      "|\n|---|---|---|---|---|---|\n");
  for (const Case& c : cases) {
    void *A = b.floats(c.m * c.k, c.dtype), *B = b.floats(c.n * c.k, c.dtype, 0.02), *C = b.floats(c.m * c.n, c.dtype);
    void* aux = c.kept || c.slope ? b.floats(c.m * c.n, c.dtype) : nullptr;
    GemmOptions o;
    o.transpose_a = c.ta, o.transpose_b = c.tb, o.activation = c.activation;
    if (c.bias) o.bias = b.floats(c.n, c.dtype);
    if (c.kept) o.pre_activation = aux;
    if (c.slope) o.pre_activation_in = aux;
    if (c.accumulate) o.beta = 1;
    // Each queue stores its tuning choices. One queue runs with tuning, one without, in turn.
    device::GpuQueue queues[2] = {device::GpuQueue(kGpu), device::GpuQueue(kGpu)};
    double ms[2] = {};
    for (int turn = 0; turn < 6; ++turn) {
      const int tune = turn % 2;
      const device::Stream s = queues[tune].stream(), before = b.stream;
      cuda::set_gemm({.tune = tune == 1}, s);
      device::finish(b.stream);
      b.stream = s;
      const double took = b.time([&] { gemm(C, A, B, c.m, c.n, c.k, o, c.dtype, s); }, 8);
      if (turn >= 2) ms[tune] += took / 2;  // the first two turns are warm-up
      b.stream = before;
    }
    const double flops = 2.0 * static_cast<double>(c.m * c.n) * static_cast<double>(c.k);
    fmt::print("| {} {} | {}×{}×{} | {:.1f} | {:.0f} | {:.0f} | {:.3f} |\n", name_of(c.dtype), c.what, c.m, c.n, c.k,
               ms[1] * 1e3, flops / ms[1] / 1e9, flops / ms[0] / 1e9, ms[0] / ms[1]);
    std::fflush(stdout);
    b.clear();
  }
}

// All GEMMs of a GPT-2 block, forward and backward, with elementwise kernels between them, as in a real training step.
void one_block(Bench& b) {
  constexpr DType kHalf = DType::bf16;
  const int64_t rows = 65536, C = 768;
  void *x = b.floats(rows * C, kHalf), *y = b.floats(rows * 4 * C, kHalf), *z = b.floats(rows * 4 * C, kHalf);
  void *aux = b.floats(rows * 4 * C, kHalf), *w = b.floats(4 * C * C, kHalf, 0.02),
       *dw = b.floats(4 * C * C, kHalf, 0.02);
  void *bias = b.floats(4 * C, kHalf), *mean = b.floats(rows, DType::f32), *rstd = b.floats(rows, DType::f32);
  device::GpuQueue queues[2] = {device::GpuQueue(kGpu), device::GpuQueue(kGpu)};
  double ms[2] = {};
  for (int turn = 0; turn < 8; ++turn) {
    const int tune = turn % 2;
    const device::Stream s = queues[tune].stream(), before = b.stream;
    cuda::set_gemm({.tune = tune == 1}, s);
    auto forward = [&](void* to, const void* from, int64_t n, int64_t k, Activation act) {
      GemmOptions o;
      o.transpose_b = true, o.bias = bias, o.activation = act;
      if (act != Activation::none) o.pre_activation = aux;
      gemm(to, from, w, rows, n, k, o, kHalf, s);
    };
    auto backward = [&](void* dx, const void* dy, const void* in, int64_t n, int64_t k, Activation act) {
      GemmOptions o, weight_options;
      o.activation = act;
      if (act != Activation::none) o.pre_activation_in = aux;
      gemm(dx, dy, w, rows, k, n, o, kHalf, s);
      weight_options.transpose_a = true, weight_options.beta = 1;
      gemm(dw, dy, in, n, k, rows, weight_options, kHalf, s);
    };
    const NormShape shape{NormKind::layer, rows, C, 1e-5};
    auto norm = [&] { norm_forward(x, mean, rstd, z, x, y, bias, bias, shape, kHalf, s); };
    device::finish(b.stream);
    b.stream = s;
    const double took = b.time(
        [&] {
          norm();
          forward(y, x, 3 * C, C, Activation::none);
          forward(z, x, C, C, Activation::none);
          norm();
          forward(y, x, 4 * C, C, Activation::gelu);
          forward(x, y, C, 4 * C, Activation::none);
          norm();
          backward(z, x, y, C, 4 * C, Activation::gelu);
          backward(x, z, y, 4 * C, C, Activation::none);
          norm();
          backward(z, x, y, C, C, Activation::none);
          backward(x, y, z, 3 * C, C, Activation::none);
        },
        60);
    if (turn >= 2) ms[tune] += took / 3;
    b.stream = before;
  }
  fmt::print(
      "\n"
      "GEMMs and norms of one GPT-2 block, forward and backward: {:.0f} µs tuned, {:.0f} µs with "
      "the first algorithm of the heuristic\n",
      ms[1] * 1e3, ms[0] * 1e3);
  b.clear();
}

void fp8_gemms(Bench& b) {
  const device::Stream& s = b.stream;
  fmt::print("\n| fp8 GEMM | m×n×k | µs | TFLOP/s | TFLOP/s, fast accumulation |\n|---|---|---|---|---|\n");
  auto state = [&] {
    const cuda::Fp8Scale one;
    auto* data = reinterpret_cast<cuda::Fp8Scale*>(b.raw(sizeof one));
    device::copy(data, &one, sizeof one, s);
    return data;
  };
  for (auto [m, n, k] : {std::tuple<int64_t, int64_t, int64_t>{65536, 2304, 768},
                         {65536, 768, 768},
                         {65536, 3072, 768},
                         {65536, 768, 3072},
                         {16384, 6400, 1600},
                         {16384, 8192, 2048},
                         {8192, 8192, 8192}}) {
    void *x = b.floats(m * k, DType::bf16), *w = b.floats(n * k, DType::bf16), *c = b.floats(m * n, DType::bf16);
    std::byte *a8 = b.raw(static_cast<size_t>(m * k)), *b8 = b.raw(static_cast<size_t>(n * k));
    cuda::Fp8Scale *sa = state(), *sb = state();
    cuda::quantize_fp8(a8, nullptr, x, m, k, sa, cuda::Fp8::e4m3, DType::bf16, s);
    cuda::quantize_fp8(b8, nullptr, w, n, k, sb, cuda::Fp8::e4m3, DType::bf16, s);
    double ms[2];
    for (bool fast : {false, true}) {
      cuda::Fp8GemmOptions options;
      options.fast_sums = fast;
      ms[fast] =
          b.time([&, m = m, n = n, k = k] { cuda::gemm_fp8(c, a8, sa, b8, sb, m, n, k, options, DType::bf16, s); });
    }
    const double flops = 2.0 * static_cast<double>(m * n) * static_cast<double>(k);
    fmt::print("| e4m3·e4m3 → bf16 | {}×{}×{} | {:.1f} | {:.0f} | {:.0f} |\n", m, n, k, ms[0] * 1e3,
               flops / ms[0] / 1e9, flops / ms[1] / 1e9);
    std::fflush(stdout);
    b.clear();
  }
}

void attention(Bench& b) {
  struct Case {
    int64_t batch, T, heads, kv_heads, D;
    bool causal;
    int64_t queries = 0;
  };
  const Case cases[] = {{64, 1024, 12, 12, 64, true}, {64, 1024, 12, 12, 64, false}, {4, 4096, 32, 32, 64, true},
                        {4, 4096, 32, 8, 64, true},   {4, 4096, 16, 16, 128, true},  {1, 16384, 16, 16, 128, true}};
  fmt::print(
      "\n| attention | forward µs | TFLOP/s | backward µs | TFLOP/s | backward, not deterministic, µs | TFLOP/s | "
      "workspace MiB |\n|---|---|---|---|---|---|---|---|\n");
  for (const Case& c : cases) {
    AttentionShape s;
    s.batch = c.batch, s.num_queries = s.num_keys = c.T, s.heads = c.heads, s.kv_heads = c.kv_heads, s.head_dim = c.D;
    s.causal = c.causal, s.scale = 1 / std::sqrt(static_cast<double>(c.D));
    const int64_t row = (c.heads + 2 * c.kv_heads) * c.D;
    s.q = s.k = s.v = {c.T * row, row};
    s.o = {c.T * c.heads * c.D, c.heads * c.D};
    auto* x = static_cast<std::byte*>(b.floats(c.batch * c.T * row, DType::bf16));
    auto* dx = static_cast<std::byte*>(b.floats(c.batch * c.T * row, DType::bf16));
    void *o = b.floats(c.batch * s.o.batch, DType::bf16), *d_o = b.floats(c.batch * s.o.batch, DType::bf16);
    void* lse = b.floats(c.batch * c.heads * c.T, DType::f32);
    const int64_t k = c.heads * c.D * 2, v = (c.heads + c.kv_heads) * c.D * 2;
    const double flops = 4.0 * static_cast<double>(c.batch * c.heads * c.T * c.T * c.D) * (c.causal ? 0.5 : 1);
    const double forward = b.time([&] { attention_forward(o, lse, x, x + k, x + v, s, DType::bf16, b.stream); });
    double backward[2];
    int64_t bytes[2];
    for (bool ordered : {true, false}) {
      cuda::set_attention({.deterministic = ordered}, b.stream);
      bytes[ordered] = attention_workspace_bytes(s, DType::bf16, b.stream);
      void* workspace = b.raw(static_cast<size_t>(bytes[ordered]));
      backward[ordered] = b.time([&] {
        attention_backward(dx, dx + k, dx + v, d_o, o, x, x + k, x + v, lse, workspace, s, DType::bf16, b.stream);
      });
    }
    cuda::set_attention({}, b.stream);
    fmt::print("| B{} H{}/{} T{} D{}{} | {:.0f} | {:.0f} | {:.0f} | {:.0f} | {:.0f} | {:.0f} | {} / {} |\n", c.batch,
               c.heads, c.kv_heads, c.T, c.D, c.causal ? " causal" : "", forward * 1e3, flops / forward / 1e9,
               backward[1] * 1e3, 2.5 * flops / backward[1] / 1e9, backward[0] * 1e3, 2.5 * flops / backward[0] / 1e9,
               bytes[1] >> 20, bytes[0] >> 20);
    std::fflush(stdout);
    b.clear();
  }
  fmt::print("\n| decoding | µs | GB/s of keys and values |\n|---|---|---|\n");
  for (auto [batch, heads, kv_heads, D, keys] :
       {std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t>{1, 32, 8, 128, 32768},
        {32, 32, 8, 128, 4096},
        {64, 12, 12, 64, 1024}}) {
    AttentionShape s;
    s.batch = batch, s.num_queries = 1, s.num_keys = keys, s.heads = heads, s.kv_heads = kv_heads, s.head_dim = D;
    s.scale = 1 / std::sqrt(static_cast<double>(D));
    s.q = s.o = {heads * D, heads * D};
    s.k = s.v = {keys * kv_heads * D, kv_heads * D};
    void *q = b.floats(batch * heads * D, DType::bf16), *o = b.floats(batch * heads * D, DType::bf16);
    void *K = b.floats(batch * s.k.batch, DType::bf16), *V = b.floats(batch * s.k.batch, DType::bf16);
    void* lse = b.floats(batch * heads, DType::f32);
    const double ms = b.time([&] { attention_forward(o, lse, q, K, V, s, DType::bf16, b.stream); });
    fmt::print("| B{} H{}/{} D{} keys {} | {:.1f} | {:.0f} |\n", batch, heads, kv_heads, D, keys, ms * 1e3,
               static_cast<double>(batch * s.k.batch) * 4 / ms / 1e6);
    b.clear();
  }
}

int run(int argc, char** argv) {
  const device::GpuSurvey survey = device::survey_gpus();
  if (survey.gpus.empty()) {
    fmt::print("no GPU: {}\n", survey.problem);
    return 1;
  }
  fmt::print("{}, {} multiprocessors\n\n", survey.gpus[0].name, survey.gpus[0].multiprocessors);
  auto asked = [&](const char* name) {
    return argc == 1 ||
           std::any_of(argv + 1, argv + argc, [&](const char* one) { return std::strcmp(one, name) == 0; });
  };
  Bench bench;
  if (asked("memory")) memory_bound(bench);
  if (asked("link")) embedding_over_link(bench);
  if (asked("gemm")) gemms(bench);
  if (asked("block")) one_block(bench);
  if (asked("fp8")) fp8_gemms(bench);
  if (asked("attention")) attention(bench);
  return 0;
}

}  // namespace
}  // namespace esp::kernel

int main(int argc, char** argv) {
  return esp::kernel::run(argc, argv);
}
