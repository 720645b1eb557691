#include "esp/kernel/embedding.h"

#include "esp/kernel/floating.h"

namespace esp::kernel {

void embedding_forward(void* y, const int32_t* ids, const void* table, const void* positions, int64_t count,
                       int64_t dim, int64_t num_rows, int64_t period, int64_t first_position, DType dtype,
                       const device::Stream&) {
  ref::embedding_forward(y, ids, table, positions, count, dim, num_rows, period, first_position, dtype);
}

void embedding_backward(void* dtable, const int32_t* ids, const void* dy, int64_t count, int64_t dim, int64_t num_rows,
                        DType dtype, const device::Stream&) {
  ref::embedding_backward(dtable, ids, dy, count, dim, num_rows, dtype);
}

void position_backward(void* dpositions, const void* dy, int64_t count, int64_t dim, int64_t period,
                       int64_t first_position, DType dtype, const device::Stream&) {
  ref::position_backward(dpositions, dy, count, dim, period, first_position, dtype);
}

}  // namespace esp::kernel
