// Column sums over all rows: bias gradients and norm weight gradients.
//
// Threads split the columns. The rows of a column are therefore added in order for any number of threads. The sums of a
// strip of columns stay in the L1 cache while the rows are added, four at a time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "esp/kernel/cpu/column_sums.cpp"
#include <hwy/foreach_target.h>
// Includes below this line must follow hwy/foreach_target.h.
#include "esp/kernel/cpu/elements-inl.h"
#include "esp/kernel/cuda_dispatch.h"
#include "esp/kernel/elementwise.h"
#include "esp/kernel/norm.h"

HWY_BEFORE_NAMESPACE();
namespace esp::kernel::HWY_NAMESPACE {

constexpr int64_t kStrip = 512;
constexpr int64_t kRows = 4;

// Sums of a strip of columns. They start from the values in memory, and are rounded once when they are stored.
template <typename T>
struct Strip {
  HWY_ALIGN Accumulator<T> sums[kStrip];
  HWY_INLINE void open(const T* from, int64_t width) {
    Accumulator<T>* to = sums;
    each_vector<T>(width, [=](auto lanes, int64_t i) HWY_ATTR { lanes.store(lanes.load(from + i), to + i); });
  }
  HWY_INLINE void close(T* to, int64_t width) const {
    const Accumulator<T>* from = sums;
    each_vector<T>(width, [=](auto lanes, int64_t i) HWY_ATTR { lanes.store(lanes.load(from + i), to + i); });
  }
};

// sums[c] += dy[r][c] for `kCount` rows.
template <typename T, int64_t kCount>
HWY_INLINE void add_rows(Accumulator<T>* sums, const T* dy, int64_t stride, int64_t width) {
  each_vector<T>(width, [=](auto lanes, int64_t i) HWY_ATTR {
    auto sum = lanes.load(sums + i);
    for (int64_t r = 0; r < kCount; ++r) sum = hn::Add(sum, lanes.load(dy + r * stride + i));
    lanes.store(sum, sums + i);
  });
}

template <typename T>
void sum_columns(T* dbias, const T* dy, int64_t rows, int64_t stride, int64_t begin, int64_t end) {
  Strip<T> strip;
  for (int64_t c = begin; c < end; c += kStrip) {
    const int64_t width = std::min(kStrip, end - c);
    strip.open(dbias + c, width);
    int64_t r = 0;
    for (; r + kRows <= rows; r += kRows) add_rows<T, kRows>(strip.sums, dy + r * stride + c, stride, width);
    for (; r < rows; ++r) add_rows<T, 1>(strip.sums, dy + r * stride + c, stride, width);
    strip.close(dbias + c, width);
  }
}

// gammas[c] += dy·x̂ and betas[c] += dy for `kCount` rows.
template <typename T, int64_t kCount, bool kBeta>
HWY_INLINE void add_norm_rows(Accumulator<T>* gammas, Accumulator<T>* betas, const T* dy, const T* x,
                              const Accumulator<T>* mean, const Accumulator<T>* rstd, int64_t stride, int64_t width) {
  const Tag<T> d;
  each_vector<T>(width, [=](auto lanes, int64_t i) HWY_ATTR {
    auto gamma = lanes.load(gammas + i), beta = gamma;
    if constexpr (kBeta) beta = lanes.load(betas + i);
    for (int64_t r = 0; r < kCount; ++r) {
      const auto from = lanes.load(dy + r * stride + i);
      auto normal = lanes.load(x + r * stride + i);
      if (mean) normal = hn::Sub(normal, hn::Set(d, mean[r]));
      gamma = hn::MulAdd(from, hn::Mul(normal, hn::Set(d, rstd[r])), gamma);
      if constexpr (kBeta) beta = hn::Add(beta, from);
    }
    lanes.store(gamma, gammas + i);
    if constexpr (kBeta) lanes.store(beta, betas + i);
  });
}

template <typename T, bool kBeta>
void sum_norm_columns(T* dgamma, T* dbeta, const T* dy, const T* x, const Accumulator<T>* mean,
                      const Accumulator<T>* rstd, int64_t rows, int64_t dim, int64_t begin, int64_t end) {
  Strip<T> gammas, betas;
  for (int64_t c = begin; c < end; c += kStrip) {
    const int64_t width = std::min(kStrip, end - c);
    gammas.open(dgamma + c, width);
    if constexpr (kBeta) betas.open(dbeta + c, width);
    auto add = [&](auto count, int64_t r) HWY_ATTR {
      add_norm_rows<T, decltype(count)::value, kBeta>(gammas.sums, betas.sums, dy + r * dim + c, x + r * dim + c,
                                                      mean ? mean + r : nullptr, rstd + r, dim, width);
    };
    int64_t r = 0;
    for (; r + kRows <= rows; r += kRows) add(std::integral_constant<int64_t, kRows>{}, r);
    for (; r < rows; ++r) add(std::integral_constant<int64_t, 1>{}, r);
    gammas.close(dgamma + c, width);
    if constexpr (kBeta) betas.close(dbeta + c, width);
  }
}

void column_sums_range(void* dbias, const void* dy, int64_t rows, int64_t cols, int64_t begin, int64_t end,
                       DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    sum_columns(static_cast<T*>(dbias), static_cast<const T*>(dy), rows, cols, begin, end);
  });
}

void norm_backward_weight_range(void* dgamma, void* dbeta, const void* dy, const void* x, const void* mean,
                                const void* rstd, const NormShape& shape, int64_t begin, int64_t end, DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    const auto sum_them = dbeta ? sum_norm_columns<T, true> : sum_norm_columns<T, false>;
    sum_them(static_cast<T*>(dgamma), static_cast<T*>(dbeta), static_cast<const T*>(dy), static_cast<const T*>(x),
             static_cast<const A*>(mean), static_cast<const A*>(rstd), shape.rows, shape.dim, begin, end);
  });
}

}  // namespace esp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace esp::kernel {

HWY_EXPORT(column_sums_range);
HWY_EXPORT(norm_backward_weight_range);

constexpr int64_t kColumnGrain = 64;

void add_column_sums(void* dbias, const void* dy, int64_t rows, int64_t cols, DType dtype,
                     const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::add_column_sums(dbias, dy, rows, cols, dtype, stream);
  const auto piece = HWY_DYNAMIC_DISPATCH(column_sums_range);
  device::parallel_for(stream, cols, std::max(kColumnGrain, row_grain(rows)),
                       [&](int64_t begin, int64_t end) { piece(dbias, dy, rows, cols, begin, end, dtype); });
}

void norm_backward_weight(void* dgamma, void* dbeta, const void* dy, const void* x, const void* mean, const void* rstd,
                          const NormShape& shape, DType dtype, const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::norm_backward_weight(dgamma, dbeta, dy, x, mean, rstd, shape, dtype, stream);
  const auto piece = HWY_DYNAMIC_DISPATCH(norm_backward_weight_range);
  const int64_t grain = std::max(kColumnGrain, row_grain(shape.rows));
  device::parallel_for(stream, shape.dim, grain, [&](int64_t begin, int64_t end) {
    piece(dgamma, dbeta, dy, x, mean, rstd, shape, begin, end, dtype);
  });
}

}  // namespace esp::kernel
#endif
