// Vectorised activation kernels. Each kernel reads its inputs once and writes its output once.
#include "esp/kernel/activation.h"
#include "esp/kernel/cuda_dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "esp/kernel/cpu/activation.cpp"
#include <hwy/foreach_target.h>
// Includes below this line must follow hwy/foreach_target.h.
#include "esp/kernel/cpu/activation-inl.h"
#include "esp/kernel/cpu/elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace esp::kernel::HWY_NAMESPACE {

void activation_forward_range(void* y, const void* x, int64_t count, Activation activation, DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    with_activation(activation, [&](auto which) {
      T* to = static_cast<T*>(y);
      const T* from = static_cast<const T*>(x);
      each_vector<T>(count, [=](auto lanes, int64_t i) HWY_ATTR {
        lanes.store(activation_lanes<decltype(which)::value>(Tag<T>(), lanes.load(from + i)), to + i);
      });
    });
  });
}

void activation_backward_range(void* dx, const void* dy, const void* x, int64_t count, Activation activation,
                               bool accumulate, DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    with_activation(activation, [&](auto which) {
      T* to = static_cast<T*>(dx);
      const T* in = static_cast<const T*>(x);
      const T* from = static_cast<const T*>(dy);
      each_vector<T>(count, [=](auto lanes, int64_t i) HWY_ATTR {
        const auto before = accumulate ? lanes.load(to + i) : hn::Zero(Tag<T>());
        const auto slope = activation_derivative_lanes<decltype(which)::value>(Tag<T>(), lanes.load(in + i));
        lanes.store(hn::MulAdd(lanes.load(from + i), slope, before), to + i);
      });
    });
  });
}

void swiglu_forward_range(void* y, const void* x, int64_t rows, int64_t width, DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    for (int64_t r = 0; r < rows; ++r) {
      T* to = static_cast<T*>(y) + r * width;
      const T* gate = static_cast<const T*>(x) + r * 2 * width;
      const T* up = gate + width;
      each_vector<T>(width, [=](auto lanes, int64_t i) HWY_ATTR {
        const auto opened = activation_lanes<Activation::silu>(Tag<T>(), lanes.load(gate + i));
        lanes.store(hn::Mul(opened, lanes.load(up + i)), to + i);
      });
    }
  });
}

void swiglu_backward_range(void* dx, const void* dy, const void* x, int64_t rows, int64_t width, DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    for (int64_t r = 0; r < rows; ++r) {
      const T* from = static_cast<const T*>(dy) + r * width;
      const T* gate = static_cast<const T*>(x) + r * 2 * width;
      const T* up = gate + width;
      T* to = static_cast<T*>(dx) + r * 2 * width;
      each_vector<T>(width, [=](auto lanes, int64_t i) HWY_ATTR {
        const Tag<T> d;
        const auto g = lanes.load(gate + i), u = lanes.load(up + i), dout = lanes.load(from + i);
        lanes.store(hn::Mul(hn::Mul(dout, u), activation_derivative_lanes<Activation::silu>(d, g)), to + i);
        lanes.store(hn::Mul(dout, activation_lanes<Activation::silu>(d, g)), to + width + i);
      });
    }
  });
}

}  // namespace esp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace esp::kernel {

HWY_EXPORT(activation_forward_range);
HWY_EXPORT(activation_backward_range);
HWY_EXPORT(swiglu_forward_range);
HWY_EXPORT(swiglu_backward_range);

void activation_forward(void* y, const void* x, int64_t count, Activation activation, DType dtype,
                        const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::activation_forward(y, x, count, activation, dtype, stream);
  const auto piece = HWY_DYNAMIC_DISPATCH(activation_forward_range);
  device::parallel_for(stream, count, kElementGrain, [&](int64_t begin, int64_t end) {
    piece(at(y, begin, dtype), at(x, begin, dtype), end - begin, activation, dtype);
  });
}

void activation_backward(void* dx, const void* dy, const void* x, int64_t count, Activation activation, bool accumulate,
                         DType dtype, const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::activation_backward(dx, dy, x, count, activation, accumulate, dtype, stream);
  const auto piece = HWY_DYNAMIC_DISPATCH(activation_backward_range);
  device::parallel_for(stream, count, kElementGrain, [&](int64_t begin, int64_t end) {
    piece(at(dx, begin, dtype), at(dy, begin, dtype), at(x, begin, dtype), end - begin, activation, accumulate, dtype);
  });
}

void swiglu_forward(void* y, const void* x, int64_t rows, int64_t width, DType dtype, const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::swiglu_forward(y, x, rows, width, dtype, stream);
  const auto piece = HWY_DYNAMIC_DISPATCH(swiglu_forward_range);
  device::parallel_for(stream, rows, row_grain(width), [&](int64_t begin, int64_t end) {
    piece(at(y, begin * width, dtype), at(x, begin * 2 * width, dtype), end - begin, width, dtype);
  });
}

void swiglu_backward(void* dx, const void* dy, const void* x, int64_t rows, int64_t width, DType dtype,
                     const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::swiglu_backward(dx, dy, x, rows, width, dtype, stream);
  const auto piece = HWY_DYNAMIC_DISPATCH(swiglu_backward_range);
  device::parallel_for(stream, rows, row_grain(width), [&](int64_t begin, int64_t end) {
    piece(at(dx, begin * 2 * width, dtype), at(dy, begin * width, dtype), at(x, begin * 2 * width, dtype), end - begin,
          width, dtype);
  });
}

}  // namespace esp::kernel
#endif
