#include "esp/parallel/cp/strided_rows.h"

#include "esp/kernel/elementwise.h"
#include "esp/kernel/floating.h"

namespace esp::parallel {

void copy_rows(const StridedRows& to, const StridedRows& from, int64_t count, int64_t width,
               const device::Stream& stream) {
  const DType into = to.tensor.dtype(), type = from.tensor.dtype();
  kernel::cast_rows(kernel::at(to.tensor.data(), to.begin, into), into, to.stride,
                    kernel::at(static_cast<const void*>(from.tensor.data()), from.begin, type), type, from.stride,
                    count, width, stream);
}

}  // namespace esp::parallel
