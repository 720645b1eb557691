// Elementwise activations and SwiGLU, forward and backward.
#include "esp/kernel/cuda/activation.cuh"

#include "esp/kernel/cuda/elements.cuh"

namespace esp::kernel::cuda {
namespace {

template <typename T, int N, Activation kind>
struct ActivationForward {
  using Inputs = Pack<T, N>;
  T* y;
  const T* x;
  __device__ Inputs load(int64_t i) const { return load_pack<N>(x + i * N); }
  __device__ void apply(int64_t i, const Inputs& in) const {
    Pack<T, N> to;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      Accumulator<T> value, derivative;
      activate_with_derivative<kind, sizeof(T) == 2>(widen(in.at[k]), value, derivative);
      to.at[k] = narrow<T>(value);
    }
    store_pack<N>(y + i * N, to);
  }
};

template <typename T, int N, Activation kind, bool kAccumulate>
struct ActivationBackward {
  struct Inputs {
    Pack<T, N> dy, x, before;
  };
  T* dx;
  const T *dy, *x;
  __device__ Inputs load(int64_t i) const {
    Inputs in;
    in.dy = load_pack<N>(dy + i * N);
    in.x = load_pack<N>(x + i * N);
    if constexpr (kAccumulate) in.before = load_pack<N>(dx + i * N);
    return in;
  }
  __device__ void apply(int64_t i, const Inputs& in) const {
    Pack<T, N> to;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const auto value = widen(in.dy.at[k]) * derivative_of<kind>(widen(in.x.at[k]));
      to.at[k] = narrow<T>(kAccumulate ? widen(in.before.at[k]) + value : value);
    }
    store_pack<N>(dx + i * N, to);
  }
};

// SwiGLU over rows of `per_row` packs. Each row of x and dx is [gate | up].
template <typename T, int N>
struct SwigluForward {
  struct Inputs {
    Pack<T, N> gate, up;
  };
  T* y;
  const T* x;
  int64_t per_row;
  __device__ Inputs load(int64_t i) const {
    const auto [row, col] = divide(i, per_row);
    const int64_t at = (row * 2 * per_row + col) * N;
    return {load_pack<N>(x + at), load_pack<N>(x + at + per_row * N)};
  }
  __device__ void apply(int64_t i, const Inputs& in) const {
    Pack<T, N> to;
#pragma unroll
    for (int k = 0; k < N; ++k)
      to.at[k] = narrow<T>(activate<Activation::silu>(widen(in.gate.at[k])) * widen(in.up.at[k]));
    store_pack<N>(y + i * N, to);
  }
};

template <typename T, int N>
struct SwigluBackward {
  struct Inputs {
    Pack<T, N> gate, up, dy;
  };
  T* dx;
  const T *dy, *x;
  int64_t per_row;
  __device__ int64_t at(int64_t i) const {
    const auto [row, col] = divide(i, per_row);
    return (row * 2 * per_row + col) * N;
  }
  __device__ Inputs load(int64_t i) const {
    return {load_pack<N>(x + at(i)), load_pack<N>(x + at(i) + per_row * N), load_pack<N>(dy + i * N)};
  }
  __device__ void apply(int64_t i, const Inputs& in) const {
    Pack<T, N> gate, up;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const auto g = widen(in.gate.at[k]), u = widen(in.up.at[k]), d = widen(in.dy.at[k]);
      gate.at[k] = narrow<T>(d * u * derivative_of<Activation::silu>(g));
      up.at[k] = narrow<T>(d * activate<Activation::silu>(g));
    }
    store_pack<N>(dx + at(i), gate);
    store_pack<N>(dx + at(i) + per_row * N, up);
  }
};

}  // namespace

void activation_forward(void* y, const void* x, int64_t count, Activation activation, DType dtype,
                        const device::Stream& stream) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    with_activation(activation, [&](auto kind) {
      for_packs<kPack<T>>(count, aligned(y, x), [&](auto width, int64_t first, int64_t n) {
        launch_pass<2>(
            ActivationForward<T, width(), kind()>{static_cast<T*>(y) + first, static_cast<const T*>(x) + first},
            n / width(), handle_of(stream));
      });
    });
  });
}

void activation_backward(void* dx, const void* dy, const void* x, int64_t count, Activation activation, bool accumulate,
                         DType dtype, const device::Stream& stream) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    with_activation(activation, [&](auto kind) {
      for_packs<kPack<T>>(count, aligned(dx, dy, x), [&](auto width, int64_t first, int64_t n) {
        T* to = static_cast<T*>(dx) + first;
        const T *from = static_cast<const T*>(dy) + first, *at = static_cast<const T*>(x) + first;
        if (accumulate)
          launch_pass<1>(ActivationBackward<T, width(), kind(), true>{to, from, at}, n / width(), handle_of(stream));
        else
          launch_pass<2>(ActivationBackward<T, width(), kind(), false>{to, from, at}, n / width(), handle_of(stream));
      });
    });
  });
}

void swiglu_forward(void* y, const void* x, int64_t rows, int64_t width, DType dtype, const device::Stream& stream) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    T* to = static_cast<T*>(y);
    const T* from = static_cast<const T*>(x);
    if (aligned(y, x) && width % kPack<T> == 0)
      launch_pass<2>(SwigluForward<T, kPack<T>>{to, from, width / kPack<T>}, rows * width / kPack<T>,
                     handle_of(stream));
    else
      launch_pass<2>(SwigluForward<T, 1>{to, from, width}, rows * width, handle_of(stream));
  });
}

void swiglu_backward(void* dx, const void* dy, const void* x, int64_t rows, int64_t width, DType dtype,
                     const device::Stream& stream) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    T* to = static_cast<T*>(dx);
    const T *from = static_cast<const T*>(dy), *at = static_cast<const T*>(x);
    if (aligned(dx, dy, x) && width % kPack<T> == 0)
      launch_pass<1>(SwigluBackward<T, kPack<T>>{to, from, at, width / kPack<T>}, rows * width / kPack<T>,
                     handle_of(stream));
    else
      launch_pass<1>(SwigluBackward<T, 1>{to, from, at, width}, rows * width, handle_of(stream));
  });
}

}  // namespace esp::kernel::cuda
