// Elementwise reductions over flat buffers. Collectives apply them to received data.
//
// `dst` is overwritten. It may equal a source exactly, but may not overlap a source partly. 16-bit types are widened to
// fp32, combined, and rounded once per call. avg combines like sum; the caller then calls `divide`. Integers wrap.
// Pointers need only element alignment. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "esp/base/dtype.h"

namespace esp::kernel {

enum class ReduceOp : uint8_t { sum, prod, min, max, avg };
inline constexpr ReduceOp kAllReduceOps[] = {ReduceOp::sum, ReduceOp::prod, ReduceOp::min, ReduceOp::max,
                                             ReduceOp::avg};
std::string_view name_of(ReduceOp op);
ReduceOp parse_reduce_op(std::string_view name);

// dst[i] = a[i] op b[i]
void reduce(void* dst, const void* a, const void* b, size_t count, DType dtype, ReduceOp op);

// dst[i] = (…((s[0][i] op s[1][i]) op s[2][i])… op s[k-1][i]), in this order, rounded to dtype once at the end.
void reduce_ordered(void* dst, const void* const* sources, int num_sources, size_t count, DType dtype, ReduceOp op);

// For floating types data[i] = data[i] · (1/divisor), in fp32 or fp64. For integers data[i] = data[i] / divisor.
void divide(void* data, size_t count, DType dtype, int divisor);

// Reference loops for tests. The vectorised kernels must give bit-identical results.
namespace ref {
void reduce(void* dst, const void* a, const void* b, size_t count, DType dtype, ReduceOp op);
void reduce_ordered(void* dst, const void* const* sources, int num_sources, size_t count, DType dtype, ReduceOp op);
void divide(void* data, size_t count, DType dtype, int divisor);
}  // namespace ref

}  // namespace esp::kernel
