#include "esp/parallel/cp/rows.h"

#include "esp/kernel/copy.h"
#include "esp/kernel/elementwise.h"
#include "esp/kernel/floating.h"

namespace esp::parallel {

void copy_rows(const Rows& to, const Rows& from, int64_t count, int64_t width, const device::Stream& stream) {
  const DType into = to.tensor.dtype(), type = from.tensor.dtype();
  const device::Stream here{stream.device, nullptr, stream.queue};
  device::parallel_for(stream, count, kernel::row_grain(width), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      void* y = kernel::at(to.tensor.data(), to.begin + r * to.stride, into);
      const void* x = kernel::at(static_cast<const void*>(from.tensor.data()), from.begin + r * from.stride, type);
      if (into == type)
        kernel::copy(y, x, static_cast<size_t>(width) * size_of(type));
      else
        kernel::cast(y, into, x, type, width, here);
    }
  });
}

}  // namespace esp::parallel
