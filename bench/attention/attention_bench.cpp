// attention_bench THREADS [BLAS.so]: times forward and backward of causal fp32 attention at several shapes. If a BLAS
// is given, unfused attention with that BLAS alternates with Espalier's kernel: S = Q·Kᵀ, mask and softmax in place,
// P·V. Its backward has the four GEMMs that need P, which is stored with T×T elements per head. Environment variables
// of the BLAS set its threads.
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <vector>

#include <fmt/format.h>

#include "esp/kernel/attention.h"
#include "esp/kernel/peak.h"

namespace {

using esp::kernel::AttentionShape;
using Gemm = void (*)(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha, const float* a,
                      int lda, const float* b, int ldb, float beta, float* c, int ldc);
constexpr double kNever = 1e30;
constexpr int kRowMajor = 101, kPlain = 111, kTransposed = 112;

double seconds_of(const std::function<void()>& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::vector<float> numbers(int64_t count) {
  std::vector<float> x(static_cast<size_t>(count));
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 2654435761u % 65536) / 32768 - 1;
  return x;
}

// Softmax over the first n values of a row of `count`; the others are masked.
void softmax_row(float* row, int64_t n, int64_t count) {
  const float highest = *std::max_element(row, row + n);
  float sum = 0;
  for (int64_t j = 0; j < count; ++j) sum += row[j] = j < n ? std::exp(row[j] - highest) : 0;
  for (int64_t j = 0; j < count; ++j) row[j] /= sum;
}

// Unfused attention, head by head, on contiguous [T, D] matrices.
struct Plain {
  Gemm gemm;
  int heads, T, D;
  std::vector<float> q, k, v, d_o, p, dp, out;
  Plain(Gemm with, int64_t num_heads, int64_t tokens, int64_t head_dim)
      : gemm(with), heads(static_cast<int>(num_heads)), T(static_cast<int>(tokens)), D(static_cast<int>(head_dim)) {
    q = k = v = d_o = out = numbers(tokens * head_dim);
    p = numbers(num_heads * tokens * tokens);
    dp = numbers(tokens * tokens);
  }
  void forward() {
    for (int h = 0; h < heads; ++h) {
      float* s = p.data() + int64_t{h} * T * T;
      const float scale = 1 / std::sqrt(static_cast<float>(D));
      gemm(kRowMajor, kPlain, kTransposed, T, T, D, scale, q.data(), D, k.data(), D, 0, s, T);
      for (int64_t i = 0; i < T; ++i) softmax_row(s + i * T, i + 1, T);
      gemm(kRowMajor, kPlain, kPlain, T, D, T, 1, s, T, v.data(), D, 0, out.data(), D);
    }
  }
  void backward() {
    for (int h = 0; h < heads; ++h) {
      const float* s = p.data() + int64_t{h} * T * T;
      gemm(kRowMajor, kPlain, kTransposed, T, T, D, 1, d_o.data(), D, v.data(), D, 0, dp.data(), T);
      gemm(kRowMajor, kTransposed, kPlain, T, D, T, 1, s, T, d_o.data(), D, 0, out.data(), D);
      for (int64_t i = 0; i < T; ++i) {
        float mean = 0;
        for (int64_t j = 0; j < T; ++j) mean += s[i * T + j] * dp[i * T + j];
        for (int64_t j = 0; j < T; ++j) dp[i * T + j] = s[i * T + j] * (dp[i * T + j] - mean);
      }
      gemm(kRowMajor, kPlain, kPlain, T, D, T, 1, dp.data(), T, k.data(), D, 0, out.data(), D);
      gemm(kRowMajor, kTransposed, kPlain, T, D, T, 1, dp.data(), T, q.data(), D, 0, out.data(), D);
    }
  }
};

void report(const char* what, const AttentionShape& s, double flops, double ours, double plain, double peak) {
  fmt::print("{:<8} B{} H{} T{:<4} D{:<3} {:8.2f} ms {:6.1f} GFLOP/s {:3.0f} % of peak", what, s.batch, s.heads,
             s.num_keys, s.head_dim, ours * 1e3, flops / ours / 1e9, 100 * flops / ours / peak);
  if (plain < kNever) fmt::print("   unfused {:8.2f} ms ({:.2f}×)", plain * 1e3, plain / ours);
  fmt::print("\n");
}

void bench(int64_t B, int64_t H, int64_t T, int64_t D, Gemm gemm, const esp::device::Stream& stream, double peak) {
  AttentionShape s;
  s.batch = B, s.heads = s.kv_heads = H, s.num_queries = s.num_keys = T, s.head_dim = D;
  s.q = s.k = s.v = {T * 3 * H * D, 3 * H * D};
  s.o = {T * H * D, H * D};
  s.causal = true;
  s.scale = 1 / std::sqrt(static_cast<double>(D));
  const int64_t count = B * T * H * D, part = H * D;
  auto qkv = numbers(3 * count), d_qkv = qkv, o = numbers(count), d_o = o, lse = numbers(B * H * T);
  const auto dtype = esp::DType::f32;
  std::vector<char> workspace(static_cast<size_t>(esp::kernel::attention_workspace_bytes(s, dtype, stream)));
  const float* x = qkv.data();
  float* dx = d_qkv.data();
  auto forward = [&] {
    esp::kernel::attention_forward(o.data(), lse.data(), x, x + part, x + 2 * part, s, dtype, stream);
  };
  auto backward = [&] {
    esp::kernel::attention_backward(dx, dx + part, dx + 2 * part, d_o.data(), o.data(), x, x + part, x + 2 * part,
                                    lse.data(), workspace.data(), s, dtype, stream);
  };
  double best[4];
  std::fill(best, best + 4, kNever);
  auto keep = [&](int which, const std::function<void()>& call) {
    best[which] = std::min(best[which], seconds_of(call));
  };
  Plain plain(gemm, gemm ? B * H : 0, T, D);
  for (int round = 0; round < 8; ++round) {
    for (int again = 0; again < 3; ++again) keep(0, forward), keep(1, backward);
    if (gemm) keep(2, [&] { plain.forward(); }), keep(3, [&] { plain.backward(); });
  }
  const double pairs = static_cast<double>(B * H * D) * static_cast<double>(T) * static_cast<double>(T + 1) / 2;
  report("forward", s, 4 * pairs, best[0], best[2], peak);
  report("backward", s, 10 * pairs, best[1], best[3], peak);
}

}  // namespace

int main(int argc, char** argv) {
  const int num_threads = argc > 1 ? std::atoi(argv[1]) : 1;
  void* library = argc > 2 ? dlopen(argv[2], RTLD_NOW) : nullptr;
  const auto gemm = library ? reinterpret_cast<Gemm>(dlsym(library, "cblas_sgemm")) : nullptr;
  if (num_threads < 1 || (argc > 2 && !gemm)) {
    fmt::print(stderr, "usage: attention_bench THREADS [BLAS.so]; {} has no cblas_sgemm\n", argc > 2 ? argv[2] : "-");
    return 2;
  }
  esp::device::ThreadPool pool(num_threads);
  esp::device::Stream stream;
  stream.pool = &pool;
  const double peak = esp::kernel::fma_peak(esp::DType::f32, stream);
  fmt::print("{} threads, multiply-add peak {:.1f} GFLOP/s; causal, fp32, best of 24 (unfused: best of 8)\n",
             num_threads, peak / 1e9);
  bench(2, 12, 512, 64, gemm, stream, peak);
  bench(8, 6, 256, 64, gemm, stream, peak);
  bench(2, 12, 1024, 64, gemm, stream, peak);
  bench(1, 12, 2048, 64, gemm, stream, peak);
  bench(2, 6, 512, 128, gemm, stream, peak);
  bench(2, 24, 512, 32, gemm, stream, peak);
}
