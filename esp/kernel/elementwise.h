// Elementwise kernels over flat buffers: fill, cast, add, scale, sums. Outputs are overwritten unless a comment says
// otherwise.
#pragma once

#include <cstdint>

#include "esp/base/dtype.h"
#include "esp/device/stream.h"

namespace esp::kernel {

void fill(void* y, double value, int64_t count, DType dtype, const device::Stream& stream);
void cast(void* y, DType to, const void* x, DType from, int64_t count, const device::Stream& stream);
// Converts rows of `width` elements. x and y have separate row strides, in elements.
void cast_rows(void* y, DType to, int64_t y_stride, const void* x, DType from, int64_t x_stride, int64_t rows,
               int64_t width, const device::Stream& stream);
void add(void* y, const void* a, const void* b, int64_t count, DType dtype, const device::Stream& stream);
void add_to(void* y, const void* x, int64_t count, DType dtype, const device::Stream& stream);  // y += x
void scale(void* y, double factor, int64_t count, DType dtype, const device::Stream& stream);   // y *= factor
// add_bias: y[r][c] += bias[c]. Its gradient is dbias[c] += Σ_r dy[r][c], with rows added in order.
void add_bias(void* y, const void* bias, int64_t rows, int64_t cols, DType dtype, const device::Stream& stream);
void add_column_sums(void* dbias, const void* dy, int64_t rows, int64_t cols, DType dtype,
                     const device::Stream& stream);

// Returns Σ x² in fp64. x is split into blocks of 4096 elements. Each block is summed, then the block sums are added in
// order, so results are bit-identical for any number of threads. The result is not finite if any element is not finite.
double sum_of_squares(const void* x, int64_t count, DType dtype, const device::Stream& stream);
bool all_finite(const void* x, int64_t count, DType dtype, const device::Stream& stream);
// Returns the sum of `count` values, added in fp64 in index order. `dtype` is the dtype of the model; the values have
// its accumulation type (float, or double for f64).
double sum(const void* x, int64_t count, DType dtype, const device::Stream& stream);
// Writes the same sum to *total, which is in the memory of the stream's device. Does not wait for the GPU.
void sum_to(double* total, const void* x, int64_t count, DType dtype, const device::Stream& stream);
void sum_of_squares_to(double* total, const void* x, int64_t count, DType dtype, const device::Stream& stream);
void iota(int32_t* y, int32_t first, int64_t count, const device::Stream& stream);                  // y[i] = first + i
void shift(int32_t* y, const int32_t* x, int32_t by, int64_t count, const device::Stream& stream);  // y = x + by

// Transposes x [batch, rows, cols] to y [batch, cols, rows]. y may not overlap x.
void transpose(void* y, const void* x, int64_t batch, int64_t rows, int64_t cols, DType dtype,
               const device::Stream& stream);

// fill_normal: x[i] = mean + std·normal(seed, purpose, first + i), by Box–Muller on counter-based random bits. The
// value is a function of the global index and equal on every instruction set. fill_uniform: uniform in [low, high] with
// 24 random bits.
void fill_normal(void* x, double mean, double std, uint64_t seed, uint64_t purpose, int64_t first, int64_t count,
                 DType dtype, const device::Stream& stream);
void fill_uniform(void* x, double low, double high, uint64_t seed, uint64_t purpose, int64_t first, int64_t count,
                  DType dtype, const device::Stream& stream);

namespace cuda {
decltype(kernel::fill) fill;
decltype(kernel::cast) cast;
decltype(kernel::add) add;
decltype(kernel::scale) scale;
decltype(kernel::add_bias) add_bias;
decltype(kernel::add_column_sums) add_column_sums;
decltype(kernel::sum_of_squares) sum_of_squares;
decltype(kernel::all_finite) all_finite;
decltype(kernel::sum) sum;
decltype(kernel::sum_to) sum_to;
decltype(kernel::iota) iota;
decltype(kernel::shift) shift;
decltype(kernel::cast_rows) cast_rows;
decltype(kernel::transpose) transpose;
decltype(kernel::fill_normal) fill_normal;
decltype(kernel::fill_uniform) fill_uniform;
}  // namespace cuda

}  // namespace esp::kernel
