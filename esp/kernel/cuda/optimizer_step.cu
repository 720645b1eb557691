// Optimizer steps: every buffer is read once and written once, and all arithmetic is in registers.
//
// A moment m is updated as m += (1 − β)·(g − m), as on the CPU.
#include "esp/kernel/optimizer_step.h"

#include <cmath>

#include "esp/kernel/cuda/adam.cuh"
#include "esp/kernel/cuda/device_scalars.h"
#include "esp/kernel/cuda/philox.cuh"

namespace esp::kernel::cuda {
namespace {

// Applies Op with rates that each block computes from scalars in device memory (device_scalars.h).
template <int kUnroll, class Op>
__global__ void __launch_bounds__(kThreads)
    device_scalars_kernel(Op op, int64_t count, AdamStep step, const StepScalars* scalars) {
  __shared__ decltype(op.rates) rates;
  if (threadIdx.x == 0)
    rates = rates_of<typename Op::A>(step, scalars->lr, step.grad_scale * scalars->grad_scale, scalars->t);
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  typename Op::Inputs in;
  if (i < count) in = op.load(i);
  __syncthreads();
  op.rates = rates;
  if (i < count) op.apply(i, in);
}

// Stochastic rounding of fp32 to a 16-bit type. The probability of rounding up is the fraction of the last place that
// rounding down would cut off.
template <typename T>
__device__ __forceinline__ T narrow_stochastic(float value, uint32_t word) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    const uint32_t bits = __float_as_uint(value);
    if ((bits & 0x7f800000u) == 0x7f800000u) return narrow<T>(value);
    return __ushort_as_bfloat16(static_cast<uint16_t>((bits + (word >> 16)) >> 16));
  } else {
    const T down = __float2half_rd(value), up = __float2half_ru(value);
    const float low = __half2float(down), gap = __half2float(up) - low;
    return gap > 0 && (value - low) > gap * (static_cast<float>(word >> 8) * 0x1p-24f) ? up : down;
  }
}

template <typename T, int N>
struct StochasticAdam {
  struct Inputs {
    Pack<float, N> m, v;
    Pack<T, N> w, g;
  };
  float *m, *v;
  T* weights;
  const T* grad;
  AdamRates<float> rates;
  Philox words;
  int64_t first;
  __device__ Inputs load(int64_t i) const {
    return {load_pack<N>(m + i * N), load_pack<N>(v + i * N), load_pack<N>(weights + i * N),
            load_pack<N>(grad + i * N)};
  }
  __device__ void apply(int64_t i, Inputs& in) const {
    uint4 block;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const int64_t index = first + i * N + k;
      if (k % 4 == 0) block = words.block(static_cast<uint64_t>(index) / 4);
      const float w = adam_update(rates, widen(in.w.at[k]), widen(in.g.at[k]), in.m.at[k], in.v.at[k]);
      in.w.at[k] = narrow_stochastic<T>(w, word_of(block, N == 1 ? static_cast<int>(index % 4) : k % 4));
    }
    store_pack<N>(weights + i * N, in.w);
    store_pack<N>(m + i * N, in.m);
    store_pack<N>(v + i * N, in.v);
  }
};

template <typename T, int N>
struct Sgd {
  using A = Accumulator<T>;
  struct Inputs {
    Pack<A, N> w, u;
    Pack<T, N> g;
  };
  A *master, *u;
  T* weights;
  const T* grad;
  A rate, momentum, decay, grad_scale;
  bool nesterov;
  __device__ Inputs load(int64_t i) const {
    Inputs in;
    in.w = load_pack<N>(master + i * N);
    in.g = load_pack<N>(grad + i * N);
    if (u) in.u = load_pack<N>(u + i * N);
    return in;
  }
  __device__ void apply(int64_t i, Inputs& in) const {
    Pack<T, N> stored;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      A g = decay * in.w.at[k] + widen(in.g.at[k]) * grad_scale;
      if (u) {
        in.u.at[k] = momentum * in.u.at[k] + g;
        g = nesterov ? momentum * in.u.at[k] + g : in.u.at[k];
      }
      in.w.at[k] -= rate * g;
      stored.at[k] = narrow<T>(in.w.at[k]);
    }
    store_pack<N>(master + i * N, in.w);
    if (u) store_pack<N>(u + i * N, in.u);
    if (weights) store_pack<N>(weights + i * N, stored);
  }
};

template <typename T, int N, bool kSplitMaster = false>
Adam<T, N, kSplitMaster> adam_of(const StepBuffers& b, int64_t first) {
  using A = Accumulator<T>;
  Adam<T, N, kSplitMaster> op{};
  op.master = static_cast<typename Adam<T, N, kSplitMaster>::Master*>(kSplitMaster ? b.lower : b.master) + first;
  op.m = static_cast<A*>(b.m) + first;
  op.v = static_cast<A*>(b.v) + first;
  op.weights = b.weights ? static_cast<T*>(b.weights) + first : nullptr;
  op.grad = static_cast<const T*>(b.grad) + first;
  return op;
}

template <typename T, bool kSplitMaster>
void adam_pass(const StepBuffers& b, const AdamStep& step, cudaStream_t queue) {
  for_packs<kPack<T>>(b.count, aligned(b.master, b.lower, b.m, b.v, b.weights, b.grad),
                      [&](auto width, int64_t first, int64_t n) {
                        auto op = adam_of<T, width(), kSplitMaster>(b, first);
                        op.rates = rates_of<Accumulator<T>>(step, step.lr, step.grad_scale, step.t);
                        launch_pass<1>(op, n / width(), queue);
                      });
}

}  // namespace

void adam_step(const StepBuffers& b, const AdamStep& step, const device::Stream& stream) {
  ESP_CHECK(step.t >= 1, "Adam step number: got {}; must be >= 1", step.t);
  ESP_CHECK(!b.lower || b.grad_type == DType::bf16, "split master copy: got weights of dtype {}; expected bf16",
            name_of(b.grad_type));
  with_floating(b.grad_type, [&]<typename T>(std::type_identity<T>) {
    if constexpr (std::is_same_v<T, __nv_bfloat16>)
      if (b.lower) return adam_pass<T, true>(b, step, handle_of(stream));
    adam_pass<T, false>(b, step, handle_of(stream));
  });
}

void adam_step(const StepBuffers& b, const AdamStep& step, const StepScalars* scalars, const device::Stream& stream) {
  ESP_CHECK(!b.lower, "Adam with scalars on the device: got a split master copy; expected a full one");
  with_floating(b.grad_type, [&]<typename T>(std::type_identity<T>) {
    for_packs<kPack<T>>(b.count, aligned(b.master, b.m, b.v, b.weights, b.grad),
                        [&](auto width, int64_t first, int64_t n) {
                          const int64_t packs = n / width();
                          device_scalars_kernel<1>
                              <<<static_cast<unsigned>(ceil_div(packs, kThreads)), kThreads, 0, handle_of(stream)>>>(
                                  adam_of<T, width()>(b, first), packs, step, scalars);
                          ESP_CUDA_LAUNCHED();
                        });
  });
}

void adam_step_stochastic(const StepBuffers& b, const AdamStep& step, uint64_t seed, uint64_t purpose,
                          const device::Stream& stream) {
  ESP_CHECK(step.t >= 1, "Adam step number: got {}; must be >= 1", step.t);
  ESP_CHECK(!b.lower, "Adam with stochastic rounding: got a split master copy; expected none");
  auto run = [&]<typename T>(std::type_identity<T>) {
    for_packs<kPack<T>>(b.count, aligned(b.m, b.v, b.weights, b.grad), [&](auto width, int64_t first, int64_t n) {
      launch_pass<1>(
          StochasticAdam<T, width()>{static_cast<float*>(b.m) + first, static_cast<float*>(b.v) + first,
                                     static_cast<T*>(b.weights) + first, static_cast<const T*>(b.grad) + first,
                                     rates_of<float>(step, step.lr, step.grad_scale, step.t), Philox(seed, purpose),
                                     first},
          n / width(), handle_of(stream));
    });
  };
  if (b.grad_type == DType::bf16) return run(std::type_identity<__nv_bfloat16>{});
  ESP_CHECK(b.grad_type == DType::f16, "stochastic rounding: got dtype {}; expected bf16 or f16", name_of(b.grad_type));
  run(std::type_identity<__half>{});
}

void sgd_step(const StepBuffers& b, const SgdStep& step, const device::Stream& stream) {
  ESP_CHECK(!b.lower, "SGD on a GPU: got a split master copy; expected a full one");
  ESP_CHECK(step.momentum == 0 || b.m, "SGD: got momentum {} and no buffer `m`; expected a buffer, or momentum 0",
            step.momentum);
  with_floating(b.grad_type, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    for_packs<kPack<T>>(b.count, aligned(b.master, b.m, b.weights, b.grad), [&](auto width, int64_t first, int64_t n) {
      launch_pass<1>(
          Sgd<T, width()>{static_cast<A*>(b.master) + first,
                          step.momentum != 0 ? static_cast<A*>(b.m) + first : nullptr,
                          b.weights ? static_cast<T*>(b.weights) + first : nullptr,
                          static_cast<const T*>(b.grad) + first, static_cast<A>(step.lr), static_cast<A>(step.momentum),
                          static_cast<A>(step.weight_decay), static_cast<A>(step.grad_scale), step.nesterov},
          n / width(), handle_of(stream));
    });
  });
}

}  // namespace esp::kernel::cuda
