#include "esp/kernel/activation.h"

#include "esp/kernel/floating.h"

namespace esp::kernel {

constexpr int64_t kGrain = 4096;

void activation_forward(void* y, const void* x, int64_t count, Activation activation, DType dtype,
                        const device::Stream& stream) {
  device::parallel_for(stream, count, kGrain, [&](int64_t begin, int64_t end) {
    ref::activation_forward(at(y, begin, dtype), at(x, begin, dtype), end - begin, activation, dtype);
  });
}

void activation_backward(void* dx, const void* dy, const void* x, int64_t count, Activation activation, bool accumulate,
                         DType dtype, const device::Stream& stream) {
  device::parallel_for(stream, count, kGrain, [&](int64_t begin, int64_t end) {
    ref::activation_backward(at(dx, begin, dtype), at(dy, begin, dtype), at(x, begin, dtype), end - begin, activation,
                             accumulate, dtype);
  });
}

void swiglu_forward(void* y, const void* x, int64_t rows, int64_t width, DType dtype, const device::Stream& stream) {
  device::parallel_for(stream, rows, 1, [&](int64_t begin, int64_t end) {
    ref::swiglu_forward(at(y, begin * width, dtype), at(x, begin * 2 * width, dtype), end - begin, width, dtype);
  });
}

void swiglu_backward(void* dx, const void* dy, const void* x, int64_t rows, int64_t width, DType dtype,
                     const device::Stream& stream) {
  device::parallel_for(stream, rows, 1, [&](int64_t begin, int64_t end) {
    ref::swiglu_backward(at(dx, begin * 2 * width, dtype), at(dy, begin * width, dtype),
                         at(x, begin * 2 * width, dtype), end - begin, width, dtype);
  });
}

}  // namespace esp::kernel
