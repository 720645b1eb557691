// Vectorised elementwise kernels: every element is read once and written once.
#include "esp/kernel/elementwise.h"
#include "esp/kernel/cuda_dispatch.h"

#include <algorithm>
#include <bit>
#include <numeric>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "esp/kernel/cpu/elementwise.cpp"
#include <hwy/foreach_target.h>
// Includes below this line must follow hwy/foreach_target.h.
#include "esp/kernel/copy.h"
#include "esp/kernel/cpu/elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace esp::kernel::HWY_NAMESPACE {

template <typename To, typename From>
void cast_elements(To* y, const From* x, int64_t count) {
  if constexpr (sizeof(Accumulator<To>) == sizeof(Accumulator<From>)) {
    each_vector<To>(count, [=](auto lanes, int64_t i) HWY_ATTR { lanes.store(lanes.load(x + i), y + i); });
  } else {
    for (int64_t i = 0; i < count; ++i)
      y[i] = static_cast<To>(static_cast<Accumulator<To>>(static_cast<Accumulator<From>>(x[i])));
  }
}

void cast_range(void* y, DType to, const void* x, DType from, int64_t count) {
  with_floating(to, [&]<typename To>(std::type_identity<To>) {
    with_floating(from, [&]<typename From>(std::type_identity<From>) {
      cast_elements(static_cast<To*>(y), static_cast<const From*>(x), count);
    });
  });
}

void add_range(void* y, const void* a, const void* b, int64_t count, DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    T* to = static_cast<T*>(y);
    const T *one = static_cast<const T*>(a), *other = static_cast<const T*>(b);
    each_vector<T>(count, [=](auto lanes, int64_t i)
                              HWY_ATTR { lanes.store(hn::Add(lanes.load(one + i), lanes.load(other + i)), to + i); });
  });
}

void scale_range(void* y, double factor, int64_t count, DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    T* to = static_cast<T*>(y);
    const auto by = hn::Set(Tag<T>(), static_cast<Accumulator<T>>(factor));
    each_vector<T>(count,
                   [=](auto lanes, int64_t i) HWY_ATTR { lanes.store(hn::Mul(lanes.load(to + i), by), to + i); });
  });
}

}  // namespace esp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace esp::kernel {

HWY_EXPORT(cast_range);
HWY_EXPORT(add_range);
HWY_EXPORT(scale_range);

void fill(void* y, double value, int64_t count, DType dtype, const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::fill(y, value, count, dtype, stream);
  with_element(dtype, [&]<typename T>(std::type_identity<T>) {
    // bf16 and f16 are filled as uint16_t, because the compiler can vectorise that
    using Bits = std::conditional_t<is_half<T>, uint16_t, T>;
    const Bits filler = std::bit_cast<Bits>(static_cast<T>(static_cast<Accumulator<T>>(value)));
    device::parallel_for(stream, count, kElementGrain, [&](int64_t begin, int64_t end) {
      std::fill(static_cast<Bits*>(y) + begin, static_cast<Bits*>(y) + end, filler);
    });
  });
}

void iota(int32_t* y, int32_t first, int64_t count, const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::iota(y, first, count, stream);
  std::iota(y, y + count, first);
}

void cast(void* y, DType to, const void* x, DType from, int64_t count, const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::cast(y, to, x, from, count, stream);
  const auto piece = HWY_DYNAMIC_DISPATCH(cast_range);
  device::parallel_for(stream, count, kElementGrain, [&](int64_t begin, int64_t end) {
    piece(at(y, begin, to), to, at(x, begin, from), from, end - begin);
  });
}

void shift(int32_t* y, const int32_t* x, int32_t by, int64_t count, const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::shift(y, x, by, count, stream);
  for (int64_t i = 0; i < count; ++i) y[i] = x[i] + by;
}

void cast_rows(void* y, DType to, int64_t y_stride, const void* x, DType from, int64_t x_stride, int64_t rows,
               int64_t width, const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::cast_rows(y, to, y_stride, x, from, x_stride, rows, width, stream);
  const auto piece = HWY_DYNAMIC_DISPATCH(cast_range);
  device::parallel_for(stream, rows, row_grain(width), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      void* into = at(y, r * y_stride, to);
      const void* row = at(x, r * x_stride, from);
      if (to == from)
        copy(into, row, static_cast<size_t>(width) * size_of(to));
      else
        piece(into, to, row, from, width);
    }
  });
}

void add(void* y, const void* a, const void* b, int64_t count, DType dtype, const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::add(y, a, b, count, dtype, stream);
  const auto piece = HWY_DYNAMIC_DISPATCH(add_range);
  device::parallel_for(stream, count, kElementGrain, [&](int64_t begin, int64_t end) {
    piece(at(y, begin, dtype), at(a, begin, dtype), at(b, begin, dtype), end - begin, dtype);
  });
}

void add_to(void* y, const void* x, int64_t count, DType dtype, const device::Stream& stream) {
  add(y, y, x, count, dtype, stream);
}

void scale(void* y, double factor, int64_t count, DType dtype, const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::scale(y, factor, count, dtype, stream);
  const auto piece = HWY_DYNAMIC_DISPATCH(scale_range);
  device::parallel_for(stream, count, kElementGrain,
                       [&](int64_t begin, int64_t end) { piece(at(y, begin, dtype), factor, end - begin, dtype); });
}

void add_bias(void* y, const void* bias, int64_t rows, int64_t cols, DType dtype, const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::add_bias(y, bias, rows, cols, dtype, stream);
  const auto piece = HWY_DYNAMIC_DISPATCH(add_range);
  device::parallel_for(stream, rows, row_grain(cols), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      void* row = at(y, r * cols, dtype);
      piece(row, row, bias, cols, dtype);
    }
  });
}

namespace {

// Transposes tile by tile through a copy on the stack. Without the copy, rows that are a power of two apart would evict
// each other from the cache.
template <typename T>
void transpose_band(T* to, const T* from, int64_t rows, int64_t cols, int64_t first, int64_t last) {
  constexpr int64_t kTile = 32;
  T tile[kTile][kTile + 1];
  for (int64_t r0 = 0; r0 < rows; r0 += kTile) {
    const int64_t n = std::min(kTile, rows - r0);
    for (int64_t r = 0; r < n; ++r)
      for (int64_t c = first; c < last; ++c) tile[c - first][r] = from[(r0 + r) * cols + c];
    for (int64_t c = first; c < last; ++c) std::copy_n(tile[c - first], n, to + c * rows + r0);
  }
}

}  // namespace

void transpose(void* y, const void* x, int64_t batch, int64_t rows, int64_t cols, DType dtype,
               const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::transpose(y, x, batch, rows, cols, dtype, stream);
  constexpr int64_t kBand = 32;
  with_element(dtype, [&]<typename T>(std::type_identity<T>) {
    const int64_t bands = (cols + kBand - 1) / kBand;  // a band is kBand rows of the result
    device::parallel_for(stream, batch * bands, row_grain(rows * kBand), [&](int64_t begin, int64_t end) {
      for (int64_t band = begin; band < end; ++band) {
        const int64_t first = band % bands * kBand, origin = band / bands * rows * cols;
        transpose_band(static_cast<T*>(y) + origin, static_cast<const T*>(x) + origin, rows, cols, first,
                       std::min(first + kBand, cols));
      }
    });
  });
}

}  // namespace esp::kernel
#endif
