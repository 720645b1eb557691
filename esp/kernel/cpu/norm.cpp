// LayerNorm and RMSNorm: forward, and the input gradient. A row is read from memory once. It stays in L1 for the
// following passes (mean, variance, result).
#include "esp/kernel/norm.h"
#include "esp/kernel/cuda_dispatch.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "esp/kernel/cpu/norm.cpp"
#include <hwy/foreach_target.h>
// Includes below this line must follow hwy/foreach_target.h.
#include "esp/kernel/cpu/elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace esp::kernel::HWY_NAMESPACE {

// sum = x + residual. Returns the sum of the rounded elements of `sum`.
template <typename T>
HWY_INLINE Accumulator<T> add_residual(T* sum, const T* x, const T* residual, int64_t dim) {
  InterleavedSums<T> total;
  each_vector_interleaved<T>(dim, [&](auto lanes, int64_t i, auto turn) HWY_ATTR {
    auto v = hn::Add(lanes.load(x + i), lanes.load(residual + i));
    lanes.store(v, sum + i);
    if constexpr (is_half<T>) v = lanes.load(sum + i);
    total.part[turn()] = hn::Add(total.part[turn()], v);
  });
  return total.total();
}

template <typename T>
HWY_INLINE Accumulator<T> row_sum(const T* x, int64_t dim) {
  InterleavedSums<T> total;
  each_vector_interleaved<T>(dim, [&](auto lanes, int64_t i, auto turn) HWY_ATTR {
    total.part[turn()] = hn::Add(total.part[turn()], lanes.load(x + i));
  });
  return total.total();
}

// Σ (x − middle)² over the elements of a row.
template <typename T>
HWY_INLINE Accumulator<T> row_spread(const T* x, Accumulator<T> middle, int64_t dim) {
  const auto center = hn::Set(Tag<T>(), middle);
  InterleavedSums<T> total;
  each_vector_interleaved<T>(dim, [&](auto lanes, int64_t i, auto turn) HWY_ATTR {
    const auto v = lanes.keep(hn::Sub(lanes.load(x + i), center));
    total.part[turn()] = hn::MulAdd(v, v, total.part[turn()]);
  });
  return total.total();
}

template <typename T>
void norm_rows(T* y, Accumulator<T>* mean, Accumulator<T>* rstd, T* sum, const T* x, const T* residual, const T* gamma,
               const T* beta, const NormShape& shape) {
  using A = Accumulator<T>;
  const Tag<T> d;
  const bool centered = shape.kind == NormKind::layer;
  const int64_t dim = shape.dim;
  for (int64_t r = 0; r < shape.rows; ++r) {
    const T* row = x + r * dim;
    A middle = 0;
    if (residual) {
      middle = add_residual(sum + r * dim, row, residual + r * dim, dim);
      row = sum + r * dim;
    } else if (centered) {
      middle = row_sum(row, dim);
    }
    middle = centered ? middle / static_cast<A>(dim) : 0;
    const double spread = static_cast<double>(row_spread(row, middle, dim)) / static_cast<double>(dim);
    const A inverse = static_cast<A>(1 / std::sqrt(spread + shape.eps));
    if (centered) mean[r] = middle;
    rstd[r] = inverse;
    const auto center = hn::Set(d, middle), scale = hn::Set(d, inverse);
    T* to = y + r * dim;
    if (beta) {
      each_vector<T>(dim, [=](auto lanes, int64_t i) HWY_ATTR {
        const auto normal = hn::Mul(hn::Sub(lanes.load(row + i), center), scale);
        lanes.store(hn::MulAdd(normal, lanes.load(gamma + i), lanes.load(beta + i)), to + i);
      });
    } else {
      each_vector<T>(dim, [=](auto lanes, int64_t i) HWY_ATTR {
        const auto normal = hn::Mul(hn::Sub(lanes.load(row + i), center), scale);
        lanes.store(hn::Mul(normal, lanes.load(gamma + i)), to + i);
      });
    }
  }
}

// With x̂ = (x − mean)·rstd and g = dy·γ: dx = rstd·(g − [mean of g] − x̂·[mean of g·x̂]). RMSNorm has no [mean of g].
template <typename T>
void norm_gradient_rows(T* dx, const T* dy, const T* x, const Accumulator<T>* mean, const Accumulator<T>* rstd,
                        const T* gamma, const NormShape& shape, bool accumulate) {
  using A = Accumulator<T>;
  const Tag<T> d;
  const bool centered = shape.kind == NormKind::layer;
  const int64_t dim = shape.dim;
  for (int64_t r = 0; r < shape.rows; ++r) {
    const T *row = x + r * dim, *from = dy + r * dim;
    T* to = dx + r * dim;
    const auto center = hn::Set(d, centered ? mean[r] : A{0}), scale = hn::Set(d, rstd[r]);
    InterleavedSums<T> sum, dot;
    each_vector_interleaved<T>(dim, [&](auto lanes, int64_t i, auto turn) HWY_ATTR {
      const auto g = hn::Mul(lanes.load(from + i), lanes.load(gamma + i));  // g is 0 in the lanes past the end
      const auto normal = hn::Mul(hn::Sub(lanes.load(row + i), center), scale);
      sum.part[turn()] = hn::Add(sum.part[turn()], g);
      dot.part[turn()] = hn::MulAdd(g, normal, dot.part[turn()]);
    });
    const auto mean_g = hn::Set(d, centered ? sum.total() / static_cast<A>(dim) : A{0});
    const auto mean_dot = hn::Set(d, dot.total() / static_cast<A>(dim));
    each_vector<T>(dim, [=](auto lanes, int64_t i) HWY_ATTR {
      const auto g = hn::Mul(lanes.load(from + i), lanes.load(gamma + i));
      const auto normal = hn::Mul(hn::Sub(lanes.load(row + i), center), scale);
      const auto rest = hn::NegMulAdd(normal, mean_dot, hn::Sub(g, mean_g));
      const auto before = accumulate ? lanes.load(to + i) : hn::Zero(d);
      lanes.store(hn::MulAdd(scale, rest, before), to + i);
    });
  }
}

void norm_forward_range(void* y, void* mean, void* rstd, void* sum, const void* x, const void* residual,
                        const void* gamma, const void* beta, const NormShape& shape, DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    norm_rows(static_cast<T*>(y), static_cast<A*>(mean), static_cast<A*>(rstd), static_cast<T*>(sum),
              static_cast<const T*>(x), static_cast<const T*>(residual), static_cast<const T*>(gamma),
              static_cast<const T*>(beta), shape);
  });
}

void norm_backward_input_range(void* dx, const void* dy, const void* x, const void* mean, const void* rstd,
                               const void* gamma, const NormShape& shape, bool accumulate, DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    norm_gradient_rows(static_cast<T*>(dx), static_cast<const T*>(dy), static_cast<const T*>(x),
                       static_cast<const A*>(mean), static_cast<const A*>(rstd), static_cast<const T*>(gamma), shape,
                       accumulate);
  });
}

}  // namespace esp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace esp::kernel {

HWY_EXPORT(norm_forward_range);
HWY_EXPORT(norm_backward_input_range);

void norm_forward(void* y, void* mean, void* rstd, void* sum, const void* x, const void* residual, const void* gamma,
                  const void* beta, const NormShape& shape, DType dtype, const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::norm_forward(y, mean, rstd, sum, x, residual, gamma, beta, shape, dtype, stream);
  ESP_CHECK(!residual || sum, "norm: got a residual but no output buffer `sum`; expected both");
  const DType stat = accumulator_of(dtype);
  const auto piece = HWY_DYNAMIC_DISPATCH(norm_forward_range);
  device::parallel_for(stream, shape.rows, row_grain(shape.dim), [&](int64_t begin, int64_t end) {
    NormShape part = shape;
    part.rows = end - begin;
    const int64_t i = begin * shape.dim;
    piece(at(y, i, dtype), at(mean, begin, stat), at(rstd, begin, stat), at(sum, i, dtype), at(x, i, dtype),
          at(residual, i, dtype), gamma, beta, part, dtype);
  });
}

void norm_backward_input(void* dx, const void* dy, const void* x, const void* mean, const void* rstd, const void* gamma,
                         const NormShape& shape, bool accumulate, DType dtype, const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::norm_backward_input(dx, dy, x, mean, rstd, gamma, shape, accumulate, dtype, stream);
  const DType stat = accumulator_of(dtype);
  const auto piece = HWY_DYNAMIC_DISPATCH(norm_backward_input_range);
  device::parallel_for(stream, shape.rows, row_grain(shape.dim), [&](int64_t begin, int64_t end) {
    NormShape part = shape;
    part.rows = end - begin;
    const int64_t i = begin * shape.dim;
    piece(at(dx, i, dtype), at(dy, i, dtype), at(x, i, dtype), at(mean, begin, stat), at(rstd, begin, stat), gamma,
          part, accumulate, dtype);
  });
}

}  // namespace esp::kernel
#endif
