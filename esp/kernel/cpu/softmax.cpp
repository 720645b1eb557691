// Softmax and dropout masks over stored attention scores, for unfused attention. Threads split the rows, and the
// compiler vectorises the loops. Flash attention (attention.h) is faster and stores no scores.
#include "esp/kernel/softmax.h"
#include "esp/kernel/cuda_dispatch.h"

#include <cmath>

#include "esp/kernel/floating.h"

namespace esp::kernel {
namespace {

template <typename T>
void forward_row(T* row, int64_t n, int64_t cols) {
  using A = Accumulator<T>;
  if (n > 0) {
    A highest = static_cast<A>(row[0]), total = 0;
    for (int64_t j = 1; j < n; ++j) highest = std::max(highest, static_cast<A>(row[j]));
    for (int64_t j = 0; j < n; ++j) total += std::exp(static_cast<A>(row[j]) - highest);
    for (int64_t j = 0; j < n; ++j) row[j] = static_cast<T>(std::exp(static_cast<A>(row[j]) - highest) / total);
  }
  std::fill(row + n, row + cols, T{});
}

template <typename T>
void backward_row(T* d, const T* p, int64_t n, int64_t cols) {
  using A = Accumulator<T>;
  A mean = 0;
  for (int64_t j = 0; j < n; ++j) mean += static_cast<A>(p[j]) * static_cast<A>(d[j]);
  for (int64_t j = 0; j < n; ++j) d[j] = static_cast<T>(static_cast<A>(p[j]) * (static_cast<A>(d[j]) - mean));
  std::fill(d + n, d + cols, T{});
}

template <typename F>  // calls f(r, index of the first element of row r)
void each_row(const SoftmaxShape& shape, const device::Stream& stream, F&& f) {
  device::parallel_for(stream, shape.rows, row_grain(shape.cols), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) f(r, r * shape.cols);
  });
}

}  // namespace

void softmax_forward(void* scores, const SoftmaxShape& shape, DType dtype, const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::softmax_forward(scores, shape, dtype, stream);
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    each_row(shape, stream, [&](int64_t r, int64_t first) {
      forward_row(static_cast<T*>(scores) + first, shape.num_visible(r), shape.cols);
    });
  });
}

void softmax_backward(void* d, const void* p, const SoftmaxShape& shape, DType dtype, const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::softmax_backward(d, p, shape, dtype, stream);
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    each_row(shape, stream, [&](int64_t r, int64_t first) {
      backward_row(static_cast<T*>(d) + first, static_cast<const T*>(p) + first, shape.num_visible(r), shape.cols);
    });
  });
}

void nonzero_mask(uint8_t* mask, const void* x, int64_t count, DType dtype, const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::nonzero_mask(mask, x, count, dtype, stream);
  device::parallel_for(stream, count, kElementGrain, [&](int64_t begin, int64_t end) {
    ref::nonzero_mask(mask + begin, at(x, begin, dtype), end - begin, dtype);
  });
}

void apply_mask(void* y, const void* x, const uint8_t* mask, double scale, int64_t count, DType dtype,
                const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::apply_mask(y, x, mask, scale, count, dtype, stream);
  device::parallel_for(stream, count, kElementGrain, [&](int64_t begin, int64_t end) {
    ref::apply_mask(at(y, begin, dtype), at(x, begin, dtype), mask + begin, scale, end - begin, dtype);
  });
}

}  // namespace esp::kernel
