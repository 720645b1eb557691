// MoE combine: the weighted sum of the expert outputs of each token. All terms are added in registers, and the sum is
// rounded once.
#include "esp/kernel/cuda_dispatch.h"
#include "esp/kernel/routing.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "esp/kernel/cpu/combine.cpp"
#include <hwy/foreach_target.h>
// Includes below this line must follow hwy/foreach_target.h.
#include "esp/kernel/cpu/elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace esp::kernel::HWY_NAMESPACE {

// The sum starts with its first term, not with 0, so that a single choice with gate 1 gives an exact copy.
template <typename T>
HWY_INLINE void sum_row(T* y, const T* x, const Accumulator<T>* gates, const int32_t* places, bool accumulate,
                        int64_t num_chosen, int64_t dim) {
  const Tag<T> d;
  each_vector<T>(dim, [=](auto lanes, int64_t i) HWY_ATTR {
    bool any = accumulate;
    auto sum = any ? lanes.load(y + i) : hn::Zero(d);
    for (int64_t j = 0; j < num_chosen; ++j) {
      if (places[j] < 0) continue;
      auto term = lanes.load(x + places[j] * dim + i);
      if (gates) term = hn::Mul(term, hn::Set(d, gates[j]));
      sum = any ? hn::Add(sum, term) : term;
      any = true;
    }
    lanes.store(sum, y + i);
  });
}

// Computes dx = gate·dy and returns the gate's gradient, the dot product of dy and x.
template <typename T>
HWY_INLINE Accumulator<T> term_back(T* dx, const T* dy, const T* x, Accumulator<T> gate, int64_t dim) {
  const Tag<T> d;
  const auto by = hn::Set(d, gate);
  InterleavedSums<T> product;
  each_vector_interleaved<T>(dim, [&](auto lanes, int64_t i, auto turn) HWY_ATTR {
    const auto v = lanes.load(dy + i);
    product.part[turn()] = hn::MulAdd(v, lanes.load(x + i), product.part[turn()]);
    lanes.store(hn::Mul(v, by), dx + i);
  });
  return product.total();
}

void combine_range(void* y, const void* x, const void* gates, const int32_t* places, bool accumulate,
                   const CombineShape& shape, int64_t begin, int64_t end, DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    const auto* weights = static_cast<const Accumulator<T>*>(gates);
    for (int64_t r = begin; r < end; ++r)
      sum_row(static_cast<T*>(y) + r * shape.dim, static_cast<const T*>(x),
              weights ? weights + r * shape.num_chosen : nullptr, places + r * shape.num_chosen, accumulate,
              shape.num_chosen, shape.dim);
  });
}

void combine_back_range(void* dx, void* dgates, const void* dy, const void* x, const void* gates, const int32_t* places,
                        const CombineShape& shape, int64_t begin, int64_t end, DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    for (int64_t i = begin * shape.num_chosen; i < end * shape.num_chosen; ++i)
      static_cast<A*>(dgates)[i] =
          places[i] < 0
              ? A{0}
              : term_back(static_cast<T*>(dx) + places[i] * shape.dim,
                          static_cast<const T*>(dy) + i / shape.num_chosen * shape.dim,
                          static_cast<const T*>(x) + places[i] * shape.dim, static_cast<const A*>(gates)[i], shape.dim);
  });
}

}  // namespace esp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace esp::kernel {

HWY_EXPORT(combine_range);
HWY_EXPORT(combine_back_range);

void combine_forward(void* y, const void* x, const void* gates, const int32_t* places, bool accumulate,
                     const CombineShape& shape, DType dtype, const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::combine_forward(y, x, gates, places, accumulate, shape, dtype, stream);
  const auto piece = HWY_DYNAMIC_DISPATCH(combine_range);
  device::parallel_for(stream, shape.rows, row_grain(shape.dim * shape.num_chosen), [&](int64_t begin, int64_t end) {
    piece(y, x, gates, places, accumulate, shape, begin, end, dtype);
  });
}

void combine_backward(void* dx, void* dgates, const void* dy, const void* x, const void* gates, const int32_t* places,
                      const CombineShape& shape, DType dtype, const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::combine_backward(dx, dgates, dy, x, gates, places, shape, dtype, stream);
  const auto piece = HWY_DYNAMIC_DISPATCH(combine_back_range);
  device::parallel_for(stream, shape.rows, row_grain(shape.dim * shape.num_chosen), [&](int64_t begin, int64_t end) {
    piece(dx, dgates, dy, x, gates, places, shape, begin, end, dtype);
  });
}

}  // namespace esp::kernel
#endif
