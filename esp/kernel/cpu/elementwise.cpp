// Plain passes with vectors: every element is read once and written once.
#include "esp/kernel/elementwise.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "esp/kernel/cpu/elementwise.cpp"
#include <hwy/foreach_target.h>
// foreach_target must come first
#include "esp/kernel/cpu/elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace esp::kernel::HWY_NAMESPACE {

template <typename To, typename From>
void cast_run(To* y, const From* x, int64_t count) {
  if constexpr (sizeof(Accumulator<To>) == sizeof(Accumulator<From>)) {
    each_vector<To>(count, [=](auto lanes, int64_t i) HWY_ATTR { lanes.store(lanes.load(x + i), y + i); });
  } else {
    for (int64_t i = 0; i < count; ++i)
      y[i] = static_cast<To>(static_cast<Accumulator<To>>(static_cast<Accumulator<From>>(x[i])));
  }
}

void cast_piece(void* y, DType to, const void* x, DType from, int64_t count) {
  with_floating(to, [&]<typename To>(std::type_identity<To>) {
    with_floating(from, [&]<typename From>(std::type_identity<From>) {
      cast_run(static_cast<To*>(y), static_cast<const From*>(x), count);
    });
  });
}

void add_piece(void* y, const void* a, const void* b, int64_t count, DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    T* to = static_cast<T*>(y);
    const T *one = static_cast<const T*>(a), *other = static_cast<const T*>(b);
    each_vector<T>(count, [=](auto lanes, int64_t i)
                              HWY_ATTR { lanes.store(hn::Add(lanes.load(one + i), lanes.load(other + i)), to + i); });
  });
}

void scale_piece(void* y, double factor, int64_t count, DType dtype) {
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

HWY_EXPORT(cast_piece);
HWY_EXPORT(add_piece);
HWY_EXPORT(scale_piece);

void fill(void* y, double value, int64_t count, DType dtype, const device::Stream& stream) {
  with_element(dtype, [&]<typename T>(std::type_identity<T>) {
    const T filler = static_cast<T>(static_cast<Accumulator<T>>(value));
    device::parallel_for(stream, count, kElementGrain, [&](int64_t begin, int64_t end) {
      std::fill(static_cast<T*>(y) + begin, static_cast<T*>(y) + end, filler);
    });
  });
}

void cast(void* y, DType to, const void* x, DType from, int64_t count, const device::Stream& stream) {
  const auto piece = HWY_DYNAMIC_DISPATCH(cast_piece);
  device::parallel_for(stream, count, kElementGrain, [&](int64_t begin, int64_t end) {
    piece(at(y, begin, to), to, at(x, begin, from), from, end - begin);
  });
}

void add(void* y, const void* a, const void* b, int64_t count, DType dtype, const device::Stream& stream) {
  const auto piece = HWY_DYNAMIC_DISPATCH(add_piece);
  device::parallel_for(stream, count, kElementGrain, [&](int64_t begin, int64_t end) {
    piece(at(y, begin, dtype), at(a, begin, dtype), at(b, begin, dtype), end - begin, dtype);
  });
}

void add_to(void* y, const void* x, int64_t count, DType dtype, const device::Stream& stream) {
  add(y, y, x, count, dtype, stream);
}

void scale(void* y, double factor, int64_t count, DType dtype, const device::Stream& stream) {
  const auto piece = HWY_DYNAMIC_DISPATCH(scale_piece);
  device::parallel_for(stream, count, kElementGrain,
                       [&](int64_t begin, int64_t end) { piece(at(y, begin, dtype), factor, end - begin, dtype); });
}

void add_bias(void* y, const void* bias, int64_t rows, int64_t cols, DType dtype, const device::Stream& stream) {
  const auto piece = HWY_DYNAMIC_DISPATCH(add_piece);
  device::parallel_for(stream, rows, row_grain(cols), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      void* row = at(y, r * cols, dtype);
      piece(row, row, bias, cols, dtype);
    }
  });
}

// Tiles small enough that the rows read and the rows written stay in the first-level cache.
void transpose(void* y, const void* x, int64_t batch, int64_t rows, int64_t cols, DType dtype,
               const device::Stream& stream) {
  constexpr int64_t kTile = 32;
  with_element(dtype, [&]<typename T>(std::type_identity<T>) {
    const int64_t bands = (cols + kTile - 1) / kTile;  // of the result's rows
    device::parallel_for(stream, batch * bands, row_grain(rows * kTile), [&](int64_t begin, int64_t end) {
      for (int64_t band = begin; band < end; ++band) {
        const int64_t c0 = band % bands * kTile, c1 = std::min(c0 + kTile, cols);
        const T* from = static_cast<const T*>(x) + band / bands * rows * cols;
        T* to = static_cast<T*>(y) + band / bands * rows * cols;
        for (int64_t r0 = 0; r0 < rows; r0 += kTile)
          for (int64_t c = c0; c < c1; ++c)
            for (int64_t r = r0; r < std::min(r0 + kTile, rows); ++r) to[c * rows + r] = from[r * cols + c];
      }
    });
  });
}

}  // namespace esp::kernel
#endif
