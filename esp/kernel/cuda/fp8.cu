#include "esp/kernel/cuda/fp8.h"

#include "esp/kernel/cuda/elements.cuh"
#include "esp/kernel/cuda/gemm_plan.h"

namespace esp::kernel::cuda {
namespace {

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

void update_fp8_scales(Fp8Scale* scales, int64_t count, Fp8 kind, const device::Stream& stream) {
  if (count == 0) return;
  update_kernel<<<static_cast<unsigned>(ceil_div(count, kThreads)), kThreads, 0, handle_of(stream)>>>(
      scales, count, static_cast<float>(largest_of(kind)));
  ESP_CUDA_LAUNCHED();
}

void gemm_fp8(void* c, const void* a, const Fp8Scale* scale_a, const void* b, const Fp8Scale* scale_b, int64_t m,
              int64_t n, int64_t k, const Fp8GemmOptions& o, DType dtype, const device::Stream& stream) {
  ESP_CHECK(dtype == DType::bf16 || dtype == DType::f16, "fp8 GEMM: got output dtype {}; expected bf16 or f16",
            name_of(dtype));
  ESP_CHECK(o.kind_a == Fp8::e4m3 || o.kind_b == Fp8::e4m3,
            "fp8 GEMM: got two e5m2 operands; expected at least one e4m3");
  ESP_CHECK(m % 16 == 0 && n % 16 == 0 && k % 16 == 0 && aligned(c, a, b, o.bias),
            "fp8 GEMM: got size {}×{}×{}; expected multiples of 16 and 16-byte aligned addresses", m, n, k);
  device::CudaQueue& queue = queue_of(stream);
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
  call.scale_a = &scale_a->inverse;  // a device address, which the host must not read
  call.scale_b = &scale_b->inverse;
  call.beta = o.accumulate ? 1 : 0;
  queue.get_or_create<GemmPlanCache>().run(key, call, queue.scratch(GemmPlanCache::kWorkspaceBytes), queue);
}

}  // namespace esp::kernel::cuda
