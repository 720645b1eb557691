// Rotary position embedding (RoPE). A thread block processes a few rows. It computes the cosines and sines of the rows
// once in shared memory, and then rotates every head.
//
// Angles are computed and reduced in fp64, because at position 100,000 an fp32 angle would have an error of 0.01 rad.
#include "esp/kernel/embedding.h"

#include <cmath>

#include "esp/kernel/cuda/elements.cuh"

namespace esp::kernel::cuda {
namespace {

constexpr int kRows = 4;

template <typename T>
struct RotaryArgs {
  T* x;
  int64_t rows, row_stride, heads, half, period, first_position, begin, end;
  double step;  // log2(theta)·2/D: the unscaled frequency of pair d is 2^(−d·step)
  RotaryFrequencies frequencies;
  bool inverse;
};

__device__ __forceinline__ void sincos_half_turns(double turns, float& c, float& s) {
  sincospif(static_cast<float>(turns), &s, &c);
}
__device__ __forceinline__ void sincos_half_turns(double turns, double& c, double& s) {
  sincospi(turns, &s, &c);
}

template <typename T, int N>
__global__ void __launch_bounds__(kThreads) rotary_kernel(RotaryArgs<T> a) {
  using A = Accumulator<T>;
  extern __shared__ double shared[];
  A *cosines = reinterpret_cast<A*>(shared), *sines = cosines + kRows * a.half;
  const int64_t first = int64_t{blockIdx.x} * kRows;
  for (int64_t i = threadIdx.x; i < kRows * a.half; i += kThreads) {
    const int64_t place = (first + i / a.half) % a.period;
    const auto position = static_cast<double>(a.first_position + place - a.begin);
    const double plain = exp2(-static_cast<double>(i % a.half) * a.step);
    const double half_turns = position * a.frequencies.scaled(plain, i % a.half) * 0.31830988618379067154;
    A c, s;
    sincos_half_turns(half_turns - 2 * rint(half_turns / 2), c, s);
    const A size = static_cast<A>(a.frequencies.size);
    cosines[i] = size * c;
    sines[i] = size * (a.inverse ? -s : s);
  }
  __syncthreads();
  const int64_t per_head = a.half / N, per_row = a.heads * per_head;
  for (int64_t i = threadIdx.x; i < kRows * per_row; i += kThreads) {
    const int64_t r = i / per_row, row = first + r, place = row % a.period;
    if (row >= a.rows || place < a.begin || place >= a.end) continue;
    const int64_t head = i % per_row / per_head, d = i % per_head * N;
    T* low = a.x + row * a.row_stride + head * 2 * a.half + d;
    Pack<T, N> u = load_pack<N>(low), v = load_pack<N>(low + a.half);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const A c = cosines[r * a.half + d + k], s = sines[r * a.half + d + k];
      const A p = widen(u.at[k]), q = widen(v.at[k]);
      u.at[k] = narrow<T>(p * c - q * s);
      v.at[k] = narrow<T>(q * c + p * s);
    }
    store_pack<N>(low, u);
    store_pack<N>(low + a.half, v);
  }
}

}  // namespace

void rotary(void* x, const RotaryShape& shape, DType dtype, const device::Stream& stream) {
  if (shape.rows == 0 || shape.heads == 0) return;
  ESP_CHECK(shape.period >= 1 && shape.head_dim % 2 == 0,
            "rotary: got period = {}, head_dim = {}; expected period >= 1 and an even head_dim", shape.period,
            shape.head_dim);
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    const int64_t half = shape.head_dim / 2;
    const RotaryArgs<T> a{static_cast<T*>(x),
                          shape.rows,
                          shape.row_stride,
                          shape.heads,
                          half,
                          shape.period,
                          shape.first_position,
                          shape.begin,
                          shape.last(),
                          std::log2(shape.angles.theta) * 2 / static_cast<double>(shape.head_dim),
                          rotary_frequencies(shape.angles, shape.head_dim),
                          shape.inverse};
    const auto grid = static_cast<unsigned>(ceil_div(shape.rows, kRows));
    const size_t bytes = 2 * kRows * static_cast<size_t>(half) * sizeof(Accumulator<T>);
    ESP_CHECK(bytes <= 48 << 10, "rotary on a GPU: got head_dim {} ({} bytes of shared memory); must be <= {} bytes",
              shape.head_dim, bytes, 48 << 10);
    if (half % kPack<T> == 0 && shape.row_stride % kPack<T> == 0 && aligned(x))
      rotary_kernel<T, kPack<T>><<<grid, kThreads, bytes, handle_of(stream)>>>(a);
    else
      rotary_kernel<T, 1><<<grid, kThreads, bytes, handle_of(stream)>>>(a);
    ESP_CUDA_LAUNCHED();
  });
}

}  // namespace esp::kernel::cuda
