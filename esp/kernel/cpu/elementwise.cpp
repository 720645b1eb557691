#include "esp/kernel/elementwise.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "esp/kernel/floating.h"

namespace esp::kernel {
namespace {

constexpr int64_t kGrain = 4096;

// f(index, Accumulator) for every element.
template <typename T, typename F>
void each(T* y, int64_t count, const device::Stream& stream, F f) {
  device::parallel_for(stream, count, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) y[i] = static_cast<T>(f(i));
  });
}

}  // namespace

void fill(void* y, double value, int64_t count, DType dtype, const device::Stream& stream) {
  with_element(dtype, [&]<typename T>(std::type_identity<T>) {
    const T filler = static_cast<T>(static_cast<Accumulator<T>>(value));
    device::parallel_for(stream, count, kGrain, [&](int64_t begin, int64_t end) {
      std::fill(static_cast<T*>(y) + begin, static_cast<T*>(y) + end, filler);
    });
  });
}

void cast(void* y, DType to, const void* x, DType from, int64_t count, const device::Stream& stream) {
  with_floating(to, [&]<typename To>(std::type_identity<To>) {
    with_floating(from, [&]<typename From>(std::type_identity<From>) {
      const From* in = static_cast<const From*>(x);
      each(static_cast<To*>(y), count, stream,
           [&](int64_t i) { return static_cast<Accumulator<To>>(static_cast<Accumulator<From>>(in[i])); });
    });
  });
}

void add(void* y, const void* a, const void* b, int64_t count, DType dtype, const device::Stream& stream) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    each(static_cast<T*>(y), count, stream, [&](int64_t i) {
      return static_cast<A>(static_cast<const T*>(a)[i]) + static_cast<A>(static_cast<const T*>(b)[i]);
    });
  });
}

void add_to(void* y, const void* x, int64_t count, DType dtype, const device::Stream& stream) {
  add(y, y, x, count, dtype, stream);
}

void scale(void* y, double factor, int64_t count, DType dtype, const device::Stream& stream) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    each(static_cast<T*>(y), count, stream,
         [&](int64_t i) { return static_cast<A>(static_cast<T*>(y)[i]) * static_cast<A>(factor); });
  });
}

void add_bias(void* y, const void* bias, int64_t rows, int64_t cols, DType dtype, const device::Stream& stream) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    each(static_cast<T*>(y), rows * cols, stream, [&](int64_t i) {
      return static_cast<A>(static_cast<T*>(y)[i]) + static_cast<A>(static_cast<const T*>(bias)[i % cols]);
    });
  });
}

void add_column_sums(void* dbias, const void* dy, int64_t rows, int64_t cols, DType dtype,
                     const device::Stream& stream) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    each(static_cast<T*>(dbias), cols, stream, [&](int64_t c) {
      A total = static_cast<A>(static_cast<T*>(dbias)[c]);
      for (int64_t r = 0; r < rows; ++r) total += static_cast<A>(static_cast<const T*>(dy)[r * cols + c]);
      return total;
    });
  });
}

double sum_of_squares(const void* x, int64_t count, DType dtype, const device::Stream&) {
  double total = 0;
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    for (int64_t first = 0; first < count; first += 4096) {
      double block = 0;
      for (int64_t i = first; i < std::min<int64_t>(first + 4096, count); ++i) {
        const double value = static_cast<Accumulator<T>>(static_cast<const T*>(x)[i]);
        block += value * value;
      }
      total += block;
    }
  });
  return total;
}

bool all_finite(const void* x, int64_t count, DType dtype, const device::Stream& stream) {
  std::atomic<bool> finite{true};
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    device::parallel_for(stream, count, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        if (!std::isfinite(static_cast<Accumulator<T>>(static_cast<const T*>(x)[i])))
          finite.store(false, std::memory_order_relaxed);
    });
  });
  return finite.load();
}

double sum(const void* x, int64_t count, DType dtype, const device::Stream&) {
  double total = 0;
  for (int64_t i = 0; i < count; ++i)
    total += dtype == DType::f64 ? static_cast<const double*>(x)[i] : double{static_cast<const float*>(x)[i]};
  return total;
}

void transpose(void* y, const void* x, int64_t batch, int64_t rows, int64_t cols, DType dtype,
               const device::Stream& stream) {
  with_element(dtype, [&]<typename T>(std::type_identity<T>) {
    device::parallel_for(stream, batch * cols, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t b = i / cols, c = i % cols;
        for (int64_t r = 0; r < rows; ++r)
          static_cast<T*>(y)[i * rows + r] = static_cast<const T*>(x)[(b * rows + r) * cols + c];
      }
    });
  });
}

}  // namespace esp::kernel
