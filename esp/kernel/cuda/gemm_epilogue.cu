#include "esp/kernel/cuda/gemm_epilogue.h"

#include "esp/kernel/cuda/activation.cuh"
#include "esp/kernel/cuda/elements.cuh"

namespace esp::kernel::cuda {
namespace {

template <typename T, int N, Activation kind>
struct GemmEpilogueOp {
  using A = Accumulator<T>;
  struct Inputs {
    Pack<T, N> product, before, pre;
  };
  T* c;
  const T* product;
  const T* bias;
  T* pre_activation;
  const T* pre_activation_in;
  int64_t per_row, ld, ldc;
  A beta;

  __device__ int64_t at(int64_t i, int64_t stride) const {
    const auto [row, col] = divide(i, per_row);
    return row * stride + col * N;
  }
  __device__ Inputs load(int64_t i) const {
    Inputs in{};
    if (product) in.product = load_pack<N>(product + at(i, ld));
    if (beta != A{0}) in.before = load_pack<N>(c + at(i, ldc));
    if (pre_activation_in) in.pre = load_pack<N>(pre_activation_in + at(i, ldc));
    return in;
  }
  __device__ void apply(int64_t i, const Inputs& in) const {
    Pack<T, N> to, kept, from{};
    if (bias) from = load_pack<N>(bias + divide(i, per_row).rest * N);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const A p = widen(in.product.at[k]), before = beta != A{0} ? beta * widen(in.before.at[k]) : A{0};
      if (pre_activation_in) {
        to.at[k] = narrow<T>(p * derivative_of<kind>(widen(in.pre.at[k])) + before);
      } else {
        const A value = p + before + (bias ? widen(from.at[k]) : A{0});
        kept.at[k] = narrow<T>(value);
        to.at[k] = narrow<T>(activate<kind>(value));
      }
    }
    if (pre_activation) store_pack<N>(pre_activation + at(i, ldc), kept);
    store_pack<N>(c + at(i, ldc), to);
  }
};

}  // namespace

void apply_gemm_epilogue(void* c, const void* product, int64_t ld, int64_t m, int64_t n, const GemmOptions& o,
                         double beta, DType dtype, const device::Stream& stream) {
  const int64_t ldc = o.ldc ? o.ldc : n;
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    with_activation(o.activation, [&](auto kind) {
      auto run = [&](auto width) {
        launch_pass<2>(
            GemmEpilogueOp<T, width(), kind()>{static_cast<T*>(c), static_cast<const T*>(product),
                                               static_cast<const T*>(o.bias), static_cast<T*>(o.pre_activation),
                                               static_cast<const T*>(o.pre_activation_in), n / width(), ld, ldc,
                                               static_cast<Accumulator<T>>(beta)},
            m * n / width(), handle_of(stream));
      };
      if (n % kPack<T> == 0 && ldc % kPack<T> == 0 && ld % kPack<T> == 0 &&
          aligned(c, product, o.bias, o.pre_activation, o.pre_activation_in))
        run(std::integral_constant<int, kPack<T>>{});
      else
        run(std::integral_constant<int, 1>{});
    });
  });
}

}  // namespace esp::kernel::cuda
