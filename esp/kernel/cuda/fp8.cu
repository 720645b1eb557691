#include "esp/kernel/cuda/fp8.h"

#include <cuda_fp8.h>

#include "esp/kernel/cuda/elements.cuh"
#include "esp/kernel/cuda/gemm_plan.h"
#include "esp/kernel/cuda/rows.cuh"

namespace esp::kernel::cuda {
namespace {

constexpr int kSide = 64, kRun = 16;  // a tile's side; elements per thread

// A tile of 64×64: a thread turns sixteen neighbours of a row into sixteen bytes, and, for the transposed, collects
// sixteen of a column from shared memory.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    quantize_kernel(uint8_t* q, uint8_t* transposed, const T* x, int64_t rows, int64_t cols, int64_t across,
                    Fp8Scale* state, __nv_fp8_interpretation_t kind) {
  __shared__ alignas(16) uint8_t tile[kSide][kSide + 4];
  __shared__ float meet[kThreads / 32];
  const auto [down, right] = divide(blockIdx.x, across);
  const int64_t row0 = down * kSide, col0 = right * kSide;
  const int r = threadIdx.x / 4, c = threadIdx.x % 4 * kRun;
  const float scale = state->scale;
  float highest = 0;
  if (row0 + r < rows && col0 + c < cols) {
    const auto in = load_pack<kRun>(x + (row0 + r) * cols + col0 + c);
    Pack<uint8_t, kRun> bytes;
#pragma unroll
    for (int k = 0; k < kRun; k += 2) {
      const float u = widen(in.at[k]), v = widen(in.at[k + 1]);
      highest = fmaxf(highest, fmaxf(fabsf(u), fabsf(v)));
      const __nv_fp8x2_storage_t pair =
          __nv_cvt_float2_to_fp8x2(make_float2(u * scale, v * scale), __NV_SATFINITE, kind);
      bytes.at[k] = static_cast<uint8_t>(pair & 0xff);
      bytes.at[k + 1] = static_cast<uint8_t>(pair >> 8);
    }
    store_pack<kRun>(q + (row0 + r) * cols + col0 + c, bytes);
    if (transposed) {
#pragma unroll
      for (int k = 0; k < kRun; k += 4)
        *reinterpret_cast<uint32_t*>(&tile[r][c + k]) = *reinterpret_cast<const uint32_t*>(&bytes.at[k]);
    }
  }
  highest = warp_max(highest);
  if (threadIdx.x % 32 == 0) meet[threadIdx.x / 32] = highest;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < kThreads / 32; ++w) highest = fmaxf(highest, meet[w]);
    // Magnitudes order like their bits, and a maximum does not depend on the order it is taken in.
    atomicMax(reinterpret_cast<int*>(&state->amax), __float_as_int(highest));
  }
  if (transposed && col0 + r < cols && row0 + c < rows) {
    Pack<uint8_t, kRun> bytes;
#pragma unroll
    for (int k = 0; k < kRun; ++k) bytes.at[k] = tile[c + k][r];
    store_pack<kRun>(transposed + (col0 + r) * rows + row0 + c, bytes);
  }
}

__global__ void update_kernel(Fp8Scale* scales, int64_t count, float largest) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  Fp8Scale& one = scales[i];
  one.history[one.next] = one.amax;
  one.next = (one.next + 1) % Fp8Scale::kHistory;
  one.amax = 0;
  float highest = 0;
  for (float past : one.history) highest = fmaxf(highest, past);
  if (highest > 0 && isfinite(highest)) {
    const float exponent = fminf(fmaxf(floorf(log2f(largest / highest)), -100.0f), 100.0f);
    one.scale = exp2f(exponent);
    one.inverse = exp2f(-exponent);
  }
}

cudaDataType_t type_of(Fp8 kind) {
  return kind == Fp8::e4m3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2;
}

}  // namespace

void quantize_fp8(void* q, void* transposed, const void* x, int64_t rows, int64_t cols, Fp8Scale* scale, Fp8 kind,
                  DType dtype, const device::Stream& stream) {
  ESP_CHECK(rows % 16 == 0 && cols % 16 == 0 && aligned(q, transposed, x), "fp8 of {}×{}: multiples of 16 are needed",
            rows, cols);
  if (rows * cols == 0) return;
  const int64_t across = ceil_div(cols, kSide), down = ceil_div(rows, kSide);
  const auto interpretation = kind == Fp8::e4m3 ? __NV_E4M3 : __NV_E5M2;
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    if constexpr (sizeof(T) < 8) {
      quantize_kernel<<<static_cast<unsigned>(across * down), kThreads, 0, handle_of(stream)>>>(
          static_cast<uint8_t*>(q), static_cast<uint8_t*>(transposed), static_cast<const T*>(x), rows, cols, across,
          scale, interpretation);
      ESP_CUDA_LAUNCHED();
    } else {
      ESP_CHECK(false, "fp8 of f64");
    }
  });
}

void update_fp8_scales(Fp8Scale* scales, int64_t count, Fp8 kind, const device::Stream& stream) {
  if (count == 0) return;
  update_kernel<<<static_cast<unsigned>(ceil_div(count, kThreads)), kThreads, 0, handle_of(stream)>>>(
      scales, count, static_cast<float>(largest_of(kind)));
  ESP_CUDA_LAUNCHED();
}

void gemm_fp8(void* c, const void* a, const Fp8Scale* scale_a, const void* b, const Fp8Scale* scale_b, int64_t m,
              int64_t n, int64_t k, const Fp8GemmOptions& o, DType dtype, const device::Stream& stream) {
  ESP_CHECK(dtype == DType::bf16 || dtype == DType::f16, "fp8 products give bf16 or f16, not {}", name_of(dtype));
  ESP_CHECK(o.kind_a == Fp8::e4m3 || o.kind_b == Fp8::e4m3, "a product of two e5m2 matrices");
  ESP_CHECK(m % 16 == 0 && n % 16 == 0 && k % 16 == 0 && aligned(c, a, b, o.bias),
            "an fp8 product of {}×{}×{}: multiples of 16 are needed", m, n, k);
  device::Queue& queue = queue_of(stream);
  GemmKey key;
  key.m = m, key.n = n, key.k = k;
  key.lda = key.ldb = k;
  key.ldc = n;
  key.type_a = type_of(o.kind_a), key.type_b = type_of(o.kind_b);
  key.type_c = dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_16F;
  key.transpose_b = 1;
  key.beta = o.accumulate;
  key.fast_sums = o.fast_sums;
  key.epilogue = o.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
  GemmCall call{.d = c, .a = a, .b = b, .bias = o.bias};
  call.scale_a = &scale_a->inverse;  // an address on the device: nothing is read here
  call.scale_b = &scale_b->inverse;
  call.beta = o.accumulate ? 1 : 0;
  queue.own<GemmPlans>().run(key, call, queue.scratch(GemmPlans::kWorkspaceBytes), queue);
}

}  // namespace esp::kernel::cuda
