// Reductions over whole arrays. A thread block sums 16384 elements in fp64. Then one block adds the block sums: each
// thread adds some of them in order, and a tree adds the results of the threads. The order is fixed, so results are
// deterministic (bit-identical when repeated).
#include "esp/kernel/cuda/device_scalars.h"
#include "esp/kernel/cuda/row_reduce.cuh"
#include "esp/kernel/elementwise.h"

namespace esp::kernel::cuda {
namespace {

constexpr int64_t kChunk = 16384;  // elements per block

struct Square {
  template <typename A>
  __device__ static double of(A x) {
    return static_cast<double>(x) * static_cast<double>(x);
  }
};
struct Identity {
  template <typename A>
  __device__ static double of(A x) {
    return static_cast<double>(x);
  }
};
struct NotFinite {
  template <typename A>
  __device__ static double of(A x) {
    return isfinite(x) ? 0 : 1;
  }
};

template <class F, int N, typename T>
__global__ void __launch_bounds__(kThreads) chunk_kernel(double* sums, const T* x, int64_t count) {
  __shared__ double partials[kThreads / 32];
  const int64_t begin = int64_t{blockIdx.x} * kChunk, end = min(count, begin + kChunk);
  double total[1] = {};
#pragma unroll 4
  for (int64_t i = begin + threadIdx.x * N; i + N <= end; i += kThreads * N) {
    const auto in = load_pack<N>(x + i);
    if constexpr (sizeof(T) == 2 && std::is_same_v<F, Square>) {
      float few = 0;  // sum of eight products of 16-bit values: the rounding error of fp32 is negligible
#pragma unroll
      for (int k = 0; k < N; ++k) few = fmaf(widen(in.at[k]), widen(in.at[k]), few);
      if (few < 3e38f && (few > 1e-30f || few == 0))
        total[0] += few;
      else  // each product in fp64: products may exceed the range of fp32
        for (int k = 0; k < N; ++k) total[0] += F::of(widen(in.at[k]));
    } else {
#pragma unroll
      for (int k = 0; k < N; ++k) total[0] += F::of(widen(in.at[k]));
    }
  }
  if constexpr (N > 1) {  // adds the elements after the last whole pack
    const int64_t rest = begin + (end - begin) / N * N + threadIdx.x;
    if (rest < end) total[0] += F::of(widen(x[rest]));
  }
  row_sums<kThreads>(total, partials);
  if (threadIdx.x == 0) sums[blockIdx.x] = total[0];
}

__global__ void __launch_bounds__(1024) total_kernel(double* to, const double* sums, int64_t count, bool accumulate) {
  __shared__ double partials[32];
  double total[1] = {};
  for (int64_t i = threadIdx.x; i < count; i += 1024) total[0] += sums[i];
  row_sums<1024>(total, partials);
  if (threadIdx.x == 0) *to = accumulate ? *to + total[0] : total[0];
}

// `to` is in device memory. `scratch` receives one sum per chunk.
template <class F>
void sum_to(double* to, double* scratch, bool accumulate, const void* x, int64_t count, DType dtype,
            const device::Stream& stream) {
  const int64_t chunks = ceil_div(count, kChunk);
  if (count > 0)
    with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
      const T* from = static_cast<const T*>(x);
      const auto grid = static_cast<unsigned>(chunks);
      if (aligned(x))
        chunk_kernel<F, kPack<T>><<<grid, kThreads, 0, handle_of(stream)>>>(scratch, from, count);
      else
        chunk_kernel<F, 1><<<grid, kThreads, 0, handle_of(stream)>>>(scratch, from, count);
      ESP_CUDA_LAUNCHED();
    });
  total_kernel<<<1, 1024, 0, handle_of(stream)>>>(to, scratch, chunks, accumulate);
  ESP_CUDA_LAUNCHED();
}

template <class F>
double sum_of(const void* x, int64_t count, DType dtype, const device::Stream& stream) {
  device::CudaQueue& queue = queue_of(stream);
  double* scratch = static_cast<double*>(queue.scratch((ceil_div(count, kChunk) + 1) * sizeof(double)));
  sum_to<F>(scratch, scratch + 1, false, x, count, dtype, stream);
  double result = 0;
  ESP_CUDA_CHECK(cudaMemcpyAsync(&result, scratch, sizeof result, cudaMemcpyDeviceToHost, queue.handle));
  ESP_CUDA_CHECK(cudaStreamSynchronize(queue.handle));
  return result;
}

__global__ void grad_scale_kernel(StepScalars* scalars, const double* squares, double max_norm, double inverse) {
  const double norm = sqrt(*squares);
  // min() is not used, because it would drop a NaN. The NaN must reach the weights.
  scalars->grad_scale =
      isfinite(norm) ? (max_norm > 0 && norm > max_norm ? inverse * (max_norm / norm) : inverse) : nan("");
}

}  // namespace

double sum_of_squares(const void* x, int64_t count, DType dtype, const device::Stream& stream) {
  return sum_of<Square>(x, count, dtype, stream);
}

bool all_finite(const void* x, int64_t count, DType dtype, const device::Stream& stream) {
  return sum_of<NotFinite>(x, count, dtype, stream) == 0;
}

double sum(const void* x, int64_t count, DType dtype, const device::Stream& stream) {
  return sum_of<Identity>(x, count, dtype == DType::f64 ? DType::f64 : DType::f32, stream);
}

void sum_to(double* total, const void* x, int64_t count, DType dtype, const device::Stream& stream) {
  double* scratch = static_cast<double*>(queue_of(stream).scratch((ceil_div(count, kChunk) + 1) * sizeof(double)));
  sum_to<Identity>(total, scratch, false, x, count, dtype == DType::f64 ? DType::f64 : DType::f32, stream);
}

void sum_of_squares_to(double* total, bool accumulate, const void* x, int64_t count, DType dtype,
                       const device::Stream& stream) {
  double* scratch = static_cast<double*>(queue_of(stream).scratch((ceil_div(count, kChunk) + 1) * sizeof(double)));
  sum_to<Square>(total, scratch, accumulate, x, count, dtype, stream);
}

void set_grad_scale(StepScalars* scalars, const double* squares, double max_norm, double inverse_loss_scale,
                    const device::Stream& stream) {
  grad_scale_kernel<<<1, 1, 0, handle_of(stream)>>>(scalars, squares, max_norm, inverse_loss_scale);
  ESP_CUDA_LAUNCHED();
}

}  // namespace esp::kernel::cuda
