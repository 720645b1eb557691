// Elementwise combinations of arrays: weighted sums, differences, products, masks.
#include "esp/kernel/cuda/elements.cuh"
#include "esp/kernel/difference.h"
#include "esp/kernel/softmax.h"
#include "esp/kernel/weighted_sum.h"

namespace esp::kernel::cuda {
namespace {

constexpr int kMaxTerms = 8;

// Weighted sum of arrays. The terms are passed by value as kernel arguments. Each product is rounded before it is
// added, as on the CPU.
template <typename T, int N>
struct WeightedSum {
  struct Inputs {};
  T* y;
  const T* x[kMaxTerms];
  Accumulator<T> weight[kMaxTerms];
  int num_terms;
  bool from_y;  // y holds the sum of the terms of earlier launches

  __device__ Inputs load(int64_t) const { return {}; }
  __device__ static float product(float w, float x) { return __fmul_rn(w, x); }
  __device__ static double product(double w, double x) { return __dmul_rn(w, x); }
  __device__ void apply(int64_t i, const Inputs&) const {
    Accumulator<T> sum[N] = {};
    if (from_y) {
      const auto before = load_pack<N>(y + i * N);
#pragma unroll
      for (int k = 0; k < N; ++k) sum[k] = widen(before.at[k]);
    }
#pragma unroll
    for (int t = 0; t < kMaxTerms; ++t) {
      if (t >= num_terms) break;
      const auto in = load_pack<N>(x[t] + i * N);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const auto term = product(weight[t], widen(in.at[k]));
        sum[k] = t == 0 && !from_y ? term : sum[k] + term;
      }
    }
    Pack<T, N> to;
#pragma unroll
    for (int k = 0; k < N; ++k) to.at[k] = narrow<T>(sum[k]);
    store_pack<N>(y + i * N, to);
  }
};

enum class Pair { subtract, multiply, add };

template <typename T, int N, Pair kind>
struct BinaryOp {
  struct Inputs {
    Pack<T, N> a, b;
  };
  T* y;
  const T *a, *b;
  __device__ Inputs load(int64_t i) const { return {load_pack<N>(a + i * N), load_pack<N>(b + i * N)}; }
  __device__ void apply(int64_t i, const Inputs& in) const {
    Pack<T, N> to;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const auto u = widen(in.a.at[k]), v = widen(in.b.at[k]);
      to.at[k] = narrow<T>(kind == Pair::subtract ? u - v : kind == Pair::multiply ? u * v : u + v);
    }
    store_pack<N>(y + i * N, to);
  }
};

template <Pair kind>
void combine(void* y, const void* a, const void* b, int64_t count, DType dtype, const device::Stream& stream) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    for_packs<kPack<T>>(count, aligned(y, a, b), [&](auto width, int64_t first, int64_t n) {
      launch_pass<2>(BinaryOp<T, width(), kind>{static_cast<T*>(y) + first, static_cast<const T*>(a) + first,
                                                static_cast<const T*>(b) + first},
                     n / width(), handle_of(stream));
    });
  });
}

template <typename T>
struct NonzeroMask {
  using Inputs = T;
  uint8_t* mask;
  const T* x;
  __device__ Inputs load(int64_t i) const { return x[i]; }
  __device__ void apply(int64_t i, const Inputs& in) const { mask[i] = widen(in) != Accumulator<T>{0}; }
};

template <typename T>
struct ApplyMask {
  struct Inputs {
    T x;
    uint8_t mask;
  };
  T* y;
  const T* x;
  const uint8_t* mask;
  Accumulator<T> scale;
  __device__ Inputs load(int64_t i) const { return {x[i], mask[i]}; }
  __device__ void apply(int64_t i, const Inputs& in) const {
    y[i] = narrow<T>(in.mask ? widen(in.x) * scale : Accumulator<T>{0});
  }
};

}  // namespace

void weighted_sum(void* y, std::span<const WeightedTerm> terms, int64_t count, DType dtype,
                  const device::Stream& stream) {
  ESP_CHECK(!terms.empty(), "weighted_sum: got no terms; expected at least one");
  ESP_CHECK(terms.size() <= kMaxTerms || dtype == DType::f32 || dtype == DType::f64,
            "weighted_sum: got {} terms of a 16-bit type; expected at most {} on a GPU", terms.size(), kMaxTerms);
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    for (size_t begin = 0; begin < terms.size(); begin += kMaxTerms) {
      const auto some = terms.subspan(begin, std::min<size_t>(kMaxTerms, terms.size() - begin));
      bool all_aligned = aligned(y);
      for (const WeightedTerm& term : some) all_aligned = all_aligned && aligned(term.x);
      for_packs<kPack<T>>(count, all_aligned, [&](auto width, int64_t first, int64_t n) {
        WeightedSum<T, width()> op{};
        op.y = static_cast<T*>(y) + first;
        for (size_t t = 0; t < some.size(); ++t) {
          op.x[t] = static_cast<const T*>(some[t].x) + first;
          op.weight[t] = static_cast<Accumulator<T>>(some[t].weight);
        }
        op.num_terms = static_cast<int>(some.size());
        op.from_y = begin > 0;
        launch_pass<1>(op, n / width(), handle_of(stream));
      });
    }
  });
}

void subtract(void* y, const void* a, const void* b, int64_t count, DType dtype, const device::Stream& stream) {
  combine<Pair::subtract>(y, a, b, count, dtype, stream);
}

void write_values(void* y, WriteMode into, const void* x, int64_t count, DType dtype, const device::Stream& stream) {
  if (into == WriteMode::add) return combine<Pair::add>(y, y, x, count, dtype, stream);
  if (into == WriteMode::subtract) return combine<Pair::subtract>(y, y, x, count, dtype, stream);
  ESP_CUDA_CHECK(
      cudaMemcpyAsync(y, x, static_cast<size_t>(count) * size_of(dtype), cudaMemcpyDeviceToDevice, handle_of(stream)));
}

void multiply(void* y, const void* x, int64_t count, DType dtype, const device::Stream& stream) {
  combine<Pair::multiply>(y, y, x, count, dtype, stream);
}

void nonzero_mask(uint8_t* mask, const void* x, int64_t count, DType dtype, const device::Stream& stream) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    launch_pass<4>(NonzeroMask<T>{mask, static_cast<const T*>(x)}, count, handle_of(stream));
  });
}

void apply_mask(void* y, const void* x, const uint8_t* mask, double scale, int64_t count, DType dtype,
                const device::Stream& stream) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    launch_pass<4>(ApplyMask<T>{static_cast<T*>(y), static_cast<const T*>(x), mask, static_cast<Accumulator<T>>(scale)},
                   count, handle_of(stream));
  });
}

}  // namespace esp::kernel::cuda
