// Element types on the GPU in packs of 16 bytes, and elementwise kernels built on them.
//
// The arithmetic of a kernel is a small struct (an Op) with two functions: `load` only reads, and `apply` computes and
// writes. A thread loads several packs before it uses the first, so that many reads are in flight.
#pragma once

#include <cstdint>
#include <type_traits>

#include "esp/kernel/cuda/types.cuh"

namespace esp::kernel::cuda {

// N elements that are loaded and stored together, up to 16 bytes per memory access.
template <typename T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
  T at[N];
};

// Rounds to nearest even. 16-bit types are rounded in pairs, because one instruction rounds two.
template <typename T, int N>
__device__ __forceinline__ Pack<T, N> narrow_all(const Accumulator<T> (&values)[N]) {
  Pack<T, N> to;
  if constexpr (std::is_same_v<T, __nv_bfloat16> && N % 2 == 0) {
#pragma unroll
    for (int k = 0; k < N; k += 2) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(values[k], values[k + 1]);
      to.at[k] = pair.x;
      to.at[k + 1] = pair.y;
    }
  } else {
#pragma unroll
    for (int k = 0; k < N; ++k) to.at[k] = narrow<T>(values[k]);
  }
  return to;
}

template <typename T>
inline constexpr int kPack = 16 / sizeof(T);

template <int N, typename T>
__device__ __forceinline__ Pack<T, N> load_pack(const T* from) {
  return *reinterpret_cast<const Pack<T, N>*>(from);
}
template <int N, typename T>
__device__ __forceinline__ void store_pack(T* to, const Pack<T, N>& pack) {
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}

// quotient = i / n and rest = i mod n. Uses 32-bit division if possible, because 64-bit division takes ten times as
// long.
struct DivMod {
  int64_t quotient, rest;
};
__device__ __forceinline__ DivMod divide(int64_t i, int64_t n) {
  if (((i | n) >> 32) == 0) {
    const auto a = static_cast<uint32_t>(i), b = static_cast<uint32_t>(n);
    return {a / b, a % b};
  }
  return {i / n, i % n};
}

// Returns true if all pointers are 16-byte aligned. A null pointer counts as aligned.
template <typename... P>
bool aligned(const P*... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) | ...) & 15) == 0;
}

inline constexpr int kThreads = 256;

template <int kUnroll, class Op>
__global__ void __launch_bounds__(kThreads) pass_kernel(Op op, int64_t count) {
  const int64_t first = int64_t{blockIdx.x} * (kThreads * kUnroll) + threadIdx.x;
  typename Op::Inputs in[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u)
    if (first + u * kThreads < count) in[u] = op.load(first + u * kThreads);
#pragma unroll
  for (int u = 0; u < kUnroll; ++u)
    if (first + u * kThreads < count) op.apply(first + u * kThreads, in[u]);
}

// Calls op.load(i), then op.apply(i, loaded), for i in [0, count), with kUnroll elements per thread.
template <int kUnroll, class Op>
void launch_pass(const Op& op, int64_t count, cudaStream_t queue) {
  if (count == 0) return;
  constexpr int64_t kPerBlock = int64_t{kThreads} * kUnroll;
  pass_kernel<kUnroll><<<static_cast<unsigned>((count + kPerBlock - 1) / kPerBlock), kThreads, 0, queue>>>(op, count);
  ESP_CUDA_LAUNCHED();
}

// Splits `count` elements into whole packs of kWidth and a rest. Calls f(std::integral_constant<int, N>{}, first,
// count) with N = kWidth for the elements in whole packs, and with N = 1 for the rest.
template <int kWidth, typename F>
void for_packs(int64_t count, bool all_aligned, F&& f) {
  const int64_t body = all_aligned ? count / kWidth * kWidth : 0;
  if (body) f(std::integral_constant<int, kWidth>{}, int64_t{0}, body);
  if (count > body) f(std::integral_constant<int, 1>{}, body, count - body);
}

inline int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

}  // namespace esp::kernel::cuda
