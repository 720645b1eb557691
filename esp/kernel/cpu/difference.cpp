#include "esp/kernel/difference.h"
#include "esp/kernel/cuda_dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "esp/kernel/cpu/difference.cpp"
#include <hwy/foreach_target.h>
// Includes below this line must follow hwy/foreach_target.h.
#include "esp/kernel/cpu/elements-inl.h"
#include "esp/kernel/elementwise.h"
#include "esp/kernel/magnitude.h"

HWY_BEFORE_NAMESPACE();
namespace esp::kernel::HWY_NAMESPACE {

void subtract_range(void* y, const void* a, const void* b, int64_t count, DType dtype) {
  with_real(dtype, [&]<typename T>(std::type_identity<T>) {
    each_vector<T>(count, [&](auto lanes, int64_t i) HWY_ATTR {
      lanes.store(hn::Sub(lanes.load(static_cast<const T*>(a) + i), lanes.load(static_cast<const T*>(b) + i)),
                  static_cast<T*>(y) + i);
    });
  });
}

void multiply_range(void* y, const void* x, int64_t count, DType dtype) {
  with_real(dtype, [&]<typename T>(std::type_identity<T>) {
    T* to = static_cast<T*>(y);
    each_vector<T>(count, [&](auto lanes, int64_t i) HWY_ATTR {
      lanes.store(hn::Mul(lanes.load(to + i), lanes.load(static_cast<const T*>(x) + i)), to + i);
    });
  });
}

}  // namespace esp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace esp::kernel {

HWY_EXPORT(subtract_range);
HWY_EXPORT(multiply_range);

void subtract(void* y, const void* a, const void* b, int64_t count, DType dtype, const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::subtract(y, a, b, count, dtype, stream);
  const auto piece = HWY_DYNAMIC_DISPATCH(subtract_range);
  device::parallel_for(stream, count, kElementGrain, [&](int64_t begin, int64_t end) {
    piece(at(y, begin, dtype), at(a, begin, dtype), at(b, begin, dtype), end - begin, dtype);
  });
}

void multiply(void* y, const void* x, int64_t count, DType dtype, const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::multiply(y, x, count, dtype, stream);
  const auto piece = HWY_DYNAMIC_DISPATCH(multiply_range);
  device::parallel_for(stream, count, kElementGrain, [&](int64_t begin, int64_t end) {
    piece(at(y, begin, dtype), at(x, begin, dtype), end - begin, dtype);
  });
}

void write_values(void* y, WriteMode into, const void* x, int64_t count, DType dtype, const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::write_values(y, into, x, count, dtype, stream);
  if (into == WriteMode::overwrite) return cast(y, dtype, x, dtype, count, stream);
  if (into == WriteMode::add) return add_to(y, x, count, dtype, stream);
  subtract(y, y, x, count, dtype, stream);
}

}  // namespace esp::kernel
#endif
