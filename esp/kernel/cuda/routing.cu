// Mixture-of-experts routing, one warp per token. Choices are the same as on the CPU: experts are chosen by decreasing
// probability; if two probabilities are equal, the lower expert number comes first.
#include "esp/kernel/routing.h"

#include "esp/kernel/cuda/row_reduce.cuh"

namespace esp::kernel::cuda {
namespace {

constexpr int kWarps = kThreads / 32;

template <typename F>
void with_real(DType dtype, F&& f) {
  ESP_CHECK(dtype == DType::f32 || dtype == DType::f64, "routing: got dtype {}; expected f32 or f64", name_of(dtype));
  if (dtype == DType::f64) return f(std::type_identity<double>{});
  f(std::type_identity<float>{});
}

template <typename A>
__global__ void __launch_bounds__(kThreads)
    route_kernel(A* probabilities, A* lse, int32_t* choices, A* gates, const A* logits, RouteShape s) {
  const int lane = threadIdx.x % 32;
  const int64_t r = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32, E = s.num_experts;
  if (r >= s.rows) return;
  const A* z = logits + r * E;
  A* p = probabilities + r * E;
  A top = -INFINITY, sum = 0;
  for (int64_t e = lane; e < E; e += 32) top = max(top, z[e]);
  top = warp_max(top);
  for (int64_t e = lane; e < E; e += 32) sum += exp(z[e] - top);
  sum = warp_sum(sum);
  for (int64_t e = lane; e < E; e += 32) p[e] = exp(z[e] - top) / sum;
  if (lane == 0) lse[r] = top + log(sum);
  __syncwarp();  // after this barrier, lanes read probabilities that other lanes wrote
  // The next choice has a smaller probability than the last one, or an equal probability and a higher number. NaN
  // counts as −1, so it is chosen last.
  A before = INFINITY, whole = 0;
  int32_t last = -1;
  for (int64_t j = 0; j < s.num_chosen; ++j) {
    A best = -INFINITY;
    int32_t which = INT32_MAX;
    for (int64_t e = lane; e < E; e += 32) {
      const A value = p[e] == p[e] ? p[e] : A(-1);
      const bool left = value < before || (value == before && e > last);
      if (left && value > best) {
        best = value;
        which = static_cast<int32_t>(e);
      }
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      const A other = __shfl_xor_sync(0xffffffffu, best, offset);
      const int32_t other_which = __shfl_xor_sync(0xffffffffu, which, offset);
      if (other > best || (other == best && other_which < which)) {
        best = other;
        which = other_which;
      }
    }
    before = best;
    last = which;
    whole += p[which];
    if (lane == 0) choices[r * s.num_chosen + j] = which;
  }
  __syncwarp();
  for (int64_t j = lane; j < s.num_chosen; j += 32) {
    const A share = p[choices[r * s.num_chosen + j]];
    gates[r * s.num_chosen + j] = s.normalise ? share / whole : share;
  }
}

template <typename A>
__global__ void __launch_bounds__(kThreads)
    route_back_kernel(A* dlogits, const A* dgates, const A* probabilities, const A* lse, const int32_t* choices,
                      RouteLosses losses, RouteShape s) {
  const int lane = threadIdx.x % 32;
  const int64_t r = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32, E = s.num_experts, k = s.num_chosen;
  if (r >= s.rows) return;
  const int64_t group = (losses.numbers ? losses.numbers[r] : r) / losses.rows_per_group;
  const A* slopes = losses.slopes ? static_cast<const A*>(losses.slopes) + group * E : nullptr;
  const A* p = probabilities + r * E;
  A whole = 1, mean_gate = 0;
  if (dgates && s.normalise) {
    whole = 0;
    for (int64_t j = 0; j < k; ++j) whole += p[choices[r * k + j]];
    for (int64_t j = 0; j < k; ++j) mean_gate += dgates[r * k + j] * p[choices[r * k + j]] / whole;
  }
  auto gradient = [&](int64_t e) {  // the gradient of the probability of expert e
    A d = slopes ? slopes[e] : A{0};
    if (dgates)
      for (int64_t j = 0; j < k; ++j)
        if (choices[r * k + j] == e) d += (dgates[r * k + j] - mean_gate) / whole;
    return d;
  };
  A mean = 0;
  for (int64_t e = lane; e < E; e += 32) mean += p[e] * gradient(e);
  mean = warp_sum(mean);
  const A of_lse = static_cast<A>(2 * losses.z) * lse[r];
  for (int64_t e = lane; e < E; e += 32) dlogits[r * E + e] = p[e] * (gradient(e) - mean + of_lse);
}

template <typename T, int N>
struct Gather {
  struct Inputs {};
  T* y;
  const T* x;
  const Accumulator<T>* gates;
  const int32_t* places;
  int64_t per_row, num_chosen;
  bool accumulate;
  __device__ Inputs load(int64_t) const { return {}; }
  __device__ void apply(int64_t i, const Inputs&) const {
    const auto [row, col] = divide(i, per_row);
    Accumulator<T> sum[N] = {};
    Pack<T, N> to;
    if (accumulate) {
      to = load_pack<N>(y + i * N);
#pragma unroll
      for (int k = 0; k < N; ++k) sum[k] = widen(to.at[k]);
    }
    for (int64_t j = 0; j < num_chosen; ++j) {
      const int64_t choice = row * num_chosen + j, place = places[choice];
      if (place < 0) continue;
      const Accumulator<T> gate = gates ? gates[choice] : Accumulator<T>{1};
      const auto from = load_pack<N>(x + (place * per_row + col) * N);
#pragma unroll
      for (int k = 0; k < N; ++k) sum[k] += gate * widen(from.at[k]);
    }
#pragma unroll
    for (int k = 0; k < N; ++k) to.at[k] = narrow<T>(sum[k]);
    store_pack<N>(y + i * N, to);
  }
};

// Combine backward: one warp per choice.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    combine_back_kernel(T* dx, Accumulator<T>* dgates, const T* dy, const T* x, const Accumulator<T>* gates,
                        const int32_t* places, CombineShape s) {
  using A = Accumulator<T>;
  const int64_t choice = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (choice >= s.rows * s.num_chosen) return;
  const int64_t place = places[choice], from = choice / s.num_chosen * s.dim;
  A product = 0;
  if (place >= 0) {
    const A gate = gates[choice];
    for (int64_t c = threadIdx.x % 32; c < s.dim; c += 32) {
      product += widen(dy[from + c]) * widen(x[place * s.dim + c]);
      dx[place * s.dim + c] = narrow<T>(gate * widen(dy[from + c]));
    }
  }
  product = warp_sum(product);
  if (threadIdx.x % 32 == 0) dgates[choice] = product;
}

}  // namespace

void route_forward(void* probabilities, void* lse, int32_t* choices, void* gates, const void* logits,
                   const RouteShape& shape, DType dtype, const device::Stream& stream) {
  ESP_CHECK(shape.num_chosen >= 1 && shape.num_chosen <= shape.num_experts,
            "routing: got {} experts per token; must be from 1 to {} (the number of experts)", shape.num_chosen,
            shape.num_experts);
  if (shape.rows == 0) return;
  with_real(dtype, [&]<typename A>(std::type_identity<A>) {
    route_kernel<<<static_cast<unsigned>(ceil_div(shape.rows, kWarps)), kThreads, 0, handle_of(stream)>>>(
        static_cast<A*>(probabilities), static_cast<A*>(lse), choices, static_cast<A*>(gates),
        static_cast<const A*>(logits), shape);
    ESP_CUDA_LAUNCHED();
  });
}

void route_backward(void* dlogits, const void* dgates, const void* probabilities, const void* lse,
                    const int32_t* choices, const RouteLosses& losses, const RouteShape& shape, DType dtype,
                    const device::Stream& stream) {
  if (shape.rows == 0) return;
  with_real(dtype, [&]<typename A>(std::type_identity<A>) {
    route_back_kernel<<<static_cast<unsigned>(ceil_div(shape.rows, kWarps)), kThreads, 0, handle_of(stream)>>>(
        static_cast<A*>(dlogits), static_cast<const A*>(dgates), static_cast<const A*>(probabilities),
        static_cast<const A*>(lse), choices, losses, shape);
    ESP_CUDA_LAUNCHED();
  });
}

void combine_forward(void* y, const void* x, const void* gates, const int32_t* places, bool accumulate,
                     const CombineShape& shape, DType dtype, const device::Stream& stream) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    auto run = [&](auto width) {
      launch_pass<1>(
          Gather<T, width()>{static_cast<T*>(y), static_cast<const T*>(x), static_cast<const Accumulator<T>*>(gates),
                             places, shape.dim / width(), shape.num_chosen, accumulate},
          shape.rows * shape.dim / width(), handle_of(stream));
    };
    if (shape.dim % kPack<T> == 0 && aligned(y, x))
      run(std::integral_constant<int, kPack<T>>{});
    else
      run(std::integral_constant<int, 1>{});
  });
}

void combine_backward(void* dx, void* dgates, const void* dy, const void* x, const void* gates, const int32_t* places,
                      const CombineShape& shape, DType dtype, const device::Stream& stream) {
  if (shape.rows * shape.num_chosen == 0) return;
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    const auto grid = static_cast<unsigned>(ceil_div(shape.rows * shape.num_chosen, kWarps));
    combine_back_kernel<<<grid, kThreads, 0, handle_of(stream)>>>(static_cast<T*>(dx), static_cast<A*>(dgates),
                                                                  static_cast<const T*>(dy), static_cast<const T*>(x),
                                                                  static_cast<const A*>(gates), places, shape);
    ESP_CUDA_LAUNCHED();
  });
}

}  // namespace esp::kernel::cuda
