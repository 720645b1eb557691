// LayerNorm and RMSNorm. Each row is read once into registers, where its statistics and the result are computed.
//
// Plain kernels are used for fp64, for rows that are too long for registers, and for rows that do not consist of whole
// packs. They use one block per row and read the row two or three times, from cache after the first time.
#include "esp/kernel/norm.h"

#include "esp/kernel/cuda/row_reduce.cuh"

namespace esp::kernel::cuda {
namespace {

template <typename T>
struct NormForwardArgs {
  T* y;
  Accumulator<T>*mean, *rstd;
  T* sum;
  const T *x, *residual, *gamma, *beta;
  int64_t rows, dim;
  double eps;
  bool layer;
};

template <typename T, int R, int P>
__global__ void __launch_bounds__(kRowThreads<R>) forward_kernel(NormForwardArgs<T> a) {
  constexpr int N = kPack<T>;
  using A = Accumulator<T>;
  __shared__ A partials[2][kRowThreads<R> / 32];
  const int lane = threadIdx.x % R;
  const int64_t row = int64_t{blockIdx.x} * kRowsPerBlock<R> + threadIdx.x / R, packs = a.dim / N;
  const bool here = row < a.rows;
  Pack<T, N> v[P];
#pragma unroll
  for (int p = 0; p < P; ++p)
    if (here && lane + p * R < packs) v[p] = load_pack<N>(a.x + row * a.dim + (lane + p * R) * N);
  if (a.residual) {
    Pack<T, N> other[P];
#pragma unroll
    for (int p = 0; p < P; ++p)
      if (here && lane + p * R < packs) other[p] = load_pack<N>(a.residual + row * a.dim + (lane + p * R) * N);
#pragma unroll
    for (int p = 0; p < P; ++p)
      if (here && lane + p * R < packs) {
#pragma unroll
        for (int k = 0; k < N; ++k) v[p].at[k] = narrow<T>(widen(v[p].at[k]) + widen(other[p].at[k]));
        store_pack<N>(a.sum + row * a.dim + (lane + p * R) * N, v[p]);
      }
  }
  A middle = 0;
  if (a.layer) {
    A total[1] = {};
#pragma unroll
    for (int p = 0; p < P; ++p)
      if (here && lane + p * R < packs) {
#pragma unroll
        for (int k = 0; k < N; ++k) total[0] += widen(v[p].at[k]);
      }
    row_sums<R>(total, partials[0]);
    middle = total[0] / static_cast<A>(a.dim);
  }
  A square[1] = {};
#pragma unroll
  for (int p = 0; p < P; ++p)
    if (here && lane + p * R < packs) {
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const A d = widen(v[p].at[k]) - middle;
        square[0] += d * d;
      }
    }
  row_sums<R>(square, partials[1]);
  const A scale = A{1} / sqrt(square[0] / static_cast<A>(a.dim) + static_cast<A>(a.eps));
  if (!here) return;
  if (lane == 0) {
    if (a.layer) a.mean[row] = middle;
    a.rstd[row] = scale;
  }
#pragma unroll
  for (int p = 0; p < P; ++p)
    if (lane + p * R < packs) {
      const int64_t c = (lane + p * R) * N;
      const auto gamma = load_pack<N>(a.gamma + c);
      Pack<T, N> beta{}, to;
      if (a.beta) beta = load_pack<N>(a.beta + c);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const A value = (widen(v[p].at[k]) - middle) * scale * widen(gamma.at[k]);
        to.at[k] = narrow<T>(a.beta ? value + widen(beta.at[k]) : value);
      }
      store_pack<N>(a.y + row * a.dim + c, to);
    }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) forward_plain(NormForwardArgs<T> a) {
  using A = Accumulator<T>;
  __shared__ A partials[2][kThreads / 32];
  const int64_t begin = int64_t{blockIdx.x} * a.dim;
  if (a.residual) {
    for (int64_t c = threadIdx.x; c < a.dim; c += kThreads)
      a.sum[begin + c] = narrow<T>(widen(a.x[begin + c]) + widen(a.residual[begin + c]));
    a.x = a.sum;  // no barrier needed: a thread reads only elements that it wrote itself
  }
  A total[1] = {}, square[1] = {}, middle = 0;
  if (a.layer) {
    for (int64_t c = threadIdx.x; c < a.dim; c += kThreads) total[0] += widen(a.x[begin + c]);
    row_sums<kThreads>(total, partials[0]);
    middle = total[0] / static_cast<A>(a.dim);
  }
  for (int64_t c = threadIdx.x; c < a.dim; c += kThreads) {
    const A d = widen(a.x[begin + c]) - middle;
    square[0] += d * d;
  }
  row_sums<kThreads>(square, partials[1]);
  const A scale = A{1} / sqrt(square[0] / static_cast<A>(a.dim) + static_cast<A>(a.eps));
  if (threadIdx.x == 0) {
    if (a.layer) a.mean[blockIdx.x] = middle;
    a.rstd[blockIdx.x] = scale;
  }
  for (int64_t c = threadIdx.x; c < a.dim; c += kThreads) {
    const A value = (widen(a.x[begin + c]) - middle) * scale * widen(a.gamma[c]);
    a.y[begin + c] = narrow<T>(a.beta ? value + widen(a.beta[c]) : value);
  }
}

// With x̂ = (x − mean)·rstd and g = dy·γ: dx = rstd·(g − [mean of g] − x̂·[mean of g·x̂]). RMSNorm has no [mean of g].
template <typename T>
struct NormBackwardInputArgs {
  T* dx;
  const T *dy, *x;
  const Accumulator<T>*mean, *rstd;
  const T* gamma;
  int64_t rows, dim;
  bool layer, accumulate;
};

template <typename T, int R, int P>
__global__ void __launch_bounds__(kRowThreads<R>) backward_kernel(NormBackwardInputArgs<T> a) {
  constexpr int N = kPack<T>;
  using A = Accumulator<T>;
  __shared__ A partials[2 * kRowThreads<R> / 32];
  const int lane = threadIdx.x % R;
  const int64_t row = int64_t{blockIdx.x} * kRowsPerBlock<R> + threadIdx.x / R, packs = a.dim / N;
  const bool here = row < a.rows;
  Pack<T, N> x[P], g[P];
#pragma unroll
  for (int p = 0; p < P; ++p)
    if (here && lane + p * R < packs) {
      x[p] = load_pack<N>(a.x + row * a.dim + (lane + p * R) * N);
      g[p] = load_pack<N>(a.dy + row * a.dim + (lane + p * R) * N);
    }
  const A middle = here && a.mean ? a.mean[row] : A{0}, scale = here ? a.rstd[row] : A{0};
  A sums[2] = {};
#pragma unroll
  for (int p = 0; p < P; ++p)
    if (here && lane + p * R < packs) {
      const auto gamma = load_pack<N>(a.gamma + (lane + p * R) * N);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const A weighted = widen(g[p].at[k]) * widen(gamma.at[k]);
        sums[0] += weighted;
        sums[1] += weighted * ((widen(x[p].at[k]) - middle) * scale);
      }
    }
  row_sums<R>(sums, partials);
  const A mean_g = a.layer ? sums[0] / static_cast<A>(a.dim) : A{0}, mean_gx = sums[1] / static_cast<A>(a.dim);
  if (!here) return;
#pragma unroll
  for (int p = 0; p < P; ++p)
    if (lane + p * R < packs) {
      const int64_t c = (lane + p * R) * N;
      const auto gamma = load_pack<N>(a.gamma + c);
      Pack<T, N> to{};
      if (a.accumulate) to = load_pack<N>(a.dx + row * a.dim + c);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const A normal = (widen(x[p].at[k]) - middle) * scale;
        const A value = scale * (widen(g[p].at[k]) * widen(gamma.at[k]) - mean_g - normal * mean_gx);
        to.at[k] = narrow<T>(a.accumulate ? widen(to.at[k]) + value : value);
      }
      store_pack<N>(a.dx + row * a.dim + c, to);
    }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) backward_plain(NormBackwardInputArgs<T> a) {
  using A = Accumulator<T>;
  __shared__ A partials[2 * kThreads / 32];
  const int64_t begin = int64_t{blockIdx.x} * a.dim;
  const A middle = a.mean ? a.mean[blockIdx.x] : A{0}, scale = a.rstd[blockIdx.x];
  A sums[2] = {};
  for (int64_t c = threadIdx.x; c < a.dim; c += kThreads) {
    const A weighted = widen(a.dy[begin + c]) * widen(a.gamma[c]);
    sums[0] += weighted;
    sums[1] += weighted * ((widen(a.x[begin + c]) - middle) * scale);
  }
  row_sums<kThreads>(sums, partials);
  const A mean_g = a.layer ? sums[0] / static_cast<A>(a.dim) : A{0}, mean_gx = sums[1] / static_cast<A>(a.dim);
  for (int64_t c = threadIdx.x; c < a.dim; c += kThreads) {
    const A normal = (widen(a.x[begin + c]) - middle) * scale;
    const A value = scale * (widen(a.dy[begin + c]) * widen(a.gamma[c]) - mean_g - normal * mean_gx);
    a.dx[begin + c] = narrow<T>(a.accumulate ? widen(a.dx[begin + c]) + value : value);
  }
}

}  // namespace

void norm_forward(void* y, void* mean, void* rstd, void* sum, const void* x, const void* residual, const void* gamma,
                  const void* beta, const NormShape& shape, DType dtype, const device::Stream& stream) {
  if (shape.rows == 0) return;
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    const NormForwardArgs<T> a{static_cast<T*>(y),
                               static_cast<A*>(mean),
                               static_cast<A*>(rstd),
                               static_cast<T*>(sum),
                               static_cast<const T*>(x),
                               static_cast<const T*>(residual),
                               static_cast<const T*>(gamma),
                               static_cast<const T*>(beta),
                               shape.rows,
                               shape.dim,
                               shape.eps,
                               shape.kind == NormKind::layer};
    bool done = false;
    if constexpr (sizeof(T) < 8)
      if (shape.dim % kPack<T> == 0 && aligned(y, sum, x, residual, gamma, beta))
        done = with_row_split(shape.dim / kPack<T>, [&](auto threads, auto packs) {
          const auto grid = static_cast<unsigned>(ceil_div(shape.rows, kRowsPerBlock<threads()>));
          forward_kernel<T, threads(), packs()><<<grid, kRowThreads<threads()>, 0, handle_of(stream)>>>(a);
        });
    if (!done) forward_plain<<<static_cast<unsigned>(shape.rows), kThreads, 0, handle_of(stream)>>>(a);
    ESP_CUDA_LAUNCHED();
  });
}

void norm_backward_input(void* dx, const void* dy, const void* x, const void* mean, const void* rstd, const void* gamma,
                         const NormShape& shape, bool accumulate, DType dtype, const device::Stream& stream) {
  if (shape.rows == 0) return;
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    const NormBackwardInputArgs<T> a{static_cast<T*>(dx),
                                     static_cast<const T*>(dy),
                                     static_cast<const T*>(x),
                                     static_cast<const A*>(mean),
                                     static_cast<const A*>(rstd),
                                     static_cast<const T*>(gamma),
                                     shape.rows,
                                     shape.dim,
                                     shape.kind == NormKind::layer,
                                     accumulate};
    bool done = false;
    if constexpr (sizeof(T) < 8)
      if (shape.dim % kPack<T> == 0 && aligned(dx, dy, x, gamma))
        done = with_row_split(shape.dim / kPack<T>, [&](auto threads, auto packs) {
          const auto grid = static_cast<unsigned>(ceil_div(shape.rows, kRowsPerBlock<threads()>));
          backward_kernel<T, threads(), packs()><<<grid, kRowThreads<threads()>, 0, handle_of(stream)>>>(a);
        });
    if (!done) backward_plain<<<static_cast<unsigned>(shape.rows), kThreads, 0, handle_of(stream)>>>(a);
    ESP_CUDA_LAUNCHED();
  });
}

}  // namespace esp::kernel::cuda
