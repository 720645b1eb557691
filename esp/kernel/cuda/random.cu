// Random fills, bit-identical to the CPU: they use the same series, and every multiplication and addition is rounded
// separately (no FMA). Initial parameters therefore do not depend on the device.
#include "esp/kernel/elementwise.h"

#include "esp/kernel/cuda/elements.cuh"
#include "esp/kernel/cuda/philox.cuh"

namespace esp::kernel::cuda {
namespace {

__device__ __forceinline__ float series(float, float c) {
  return c;
}
template <typename... Rest>
__device__ __forceinline__ float series(float x, float c, Rest... rest) {
  return __fadd_rn(__fmul_rn(series(x, rest...), x), c);
}

// ln u with u = 2^e·f and f in [√½, √2): e·ln 2 + 2·artanh((f − 1)/(f + 1)).
__device__ float log_unit(float u) {
  const int bits = __float_as_int(u), e = (bits - 0x3f3504f3) >> 23;
  const float f = __int_as_float(bits - (e << 23));
  const float s = __fdiv_rn(__fsub_rn(f, 1.0f), __fadd_rn(f, 1.0f));
  const float artanh = __fmul_rn(s, series(__fmul_rn(s, s), 2.0f, 2.0f / 3, 2.0f / 5, 2.0f / 7, 2.0f / 9));
  return __fadd_rn(__fmul_rn(static_cast<float>(e), 0.693147181f), artanh);
}

// Two normal numbers from the words u and v: √(−2 ln u)·cos 2πv and √(−2 ln u)·sin 2πv.
__device__ void normal_pair(uint32_t u, uint32_t v, float& first, float& second) {
  const float unit = __fmul_rn(__fadd_rn(static_cast<float>(static_cast<int>(u >> 1)), 0.5f), 0x1p-31f);
  const float radius = __fsqrt_rn(__fmul_rn(-2.0f, log_unit(unit)));
  const uint32_t quarter = (v + 0x20000000u) >> 30;
  const float angle = __fmul_rn(static_cast<float>(static_cast<int>(v << 2)), 1.57079633f * 0x1p-32f);
  const float square = __fmul_rn(angle, angle);
  const float sine = __fmul_rn(angle, series(square, 1.0f, -1.0f / 6, 1.0f / 120, -1.0f / 5040, 1.0f / 362880));
  const float cosine = series(square, 1.0f, -0.5f, 1.0f / 24, -1.0f / 720, 1.0f / 40320);
  const float c = quarter & 1 ? sine : cosine, s = quarter & 1 ? cosine : sine;
  first = __fmul_rn(radius, (quarter + 1) & 2 ? -c : c);
  second = __fmul_rn(radius, quarter & 2 ? -s : s);
}

struct Normal {
  __device__ void operator()(const uint4& w, float (&to)[4]) const {
    normal_pair(w.x, w.y, to[0], to[1]);
    normal_pair(w.z, w.w, to[2], to[3]);
  }
};

struct Uniform {
  __device__ static float unit(uint32_t word) { return __fmul_rn(static_cast<float>(word >> 8), 0x1p-24f); }
  __device__ void operator()(const uint4& w, float (&to)[4]) const {
    to[0] = unit(w.x);
    to[1] = unit(w.y);
    to[2] = unit(w.z);
    to[3] = unit(w.w);
  }
};

__device__ __forceinline__ float scale_and_shift(float offset, float factor, float draw) {
  return __fadd_rn(offset, __fmul_rn(factor, draw));
}
__device__ __forceinline__ double scale_and_shift(double offset, double factor, float draw) {
  return __dadd_rn(offset, __dmul_rn(factor, static_cast<double>(draw)));
}

// Each thread fills the four elements of one Philox block. Thread 0 has the block that contains element `first`.
template <typename T, class Draw>
__global__ void __launch_bounds__(kThreads)
    fill_kernel(T* x, Accumulator<T> offset, Accumulator<T> factor, Philox words, int64_t first, int64_t count) {
  const int64_t block = first / 4 + int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (block * 4 >= first + count) return;
  float drawn[4];
  Draw()(words.block(static_cast<uint64_t>(block)), drawn);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int64_t i = block * 4 + k - first;
    if (i >= 0 && i < count) x[i] = narrow<T>(scale_and_shift(offset, factor, drawn[k]));
  }
}

template <class Draw>
void fill_by(void* x, double offset, double factor, uint64_t seed, uint64_t purpose, int64_t first, int64_t count,
             DType dtype, const device::Stream& stream) {
  if (count == 0) return;
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    const int64_t blocks = ceil_div(first + count, 4) - first / 4;
    fill_kernel<T, Draw><<<static_cast<unsigned>(ceil_div(blocks, kThreads)), kThreads, 0, handle_of(stream)>>>(
        static_cast<T*>(x), static_cast<A>(offset), static_cast<A>(factor), Philox(seed, purpose), first, count);
    ESP_CUDA_LAUNCHED();
  });
}

}  // namespace

void fill_normal(void* x, double mean, double std, uint64_t seed, uint64_t purpose, int64_t first, int64_t count,
                 DType dtype, const device::Stream& stream) {
  fill_by<Normal>(x, mean, std, seed, purpose, first, count, dtype, stream);
}

void fill_uniform(void* x, double low, double high, uint64_t seed, uint64_t purpose, int64_t first, int64_t count,
                  DType dtype, const device::Stream& stream) {
  fill_by<Uniform>(x, low, high - low, seed, purpose, first, count, dtype, stream);
}

}  // namespace esp::kernel::cuda
