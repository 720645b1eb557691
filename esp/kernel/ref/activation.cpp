#include "esp/kernel/activation.h"

#include "esp/kernel/activation_math.h"
#include "esp/kernel/floating.h"

namespace esp::kernel::ref {

void activation_forward(void* y, const void* x, int64_t count, Activation activation, DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    with_activation(activation, [&](auto which) {
      for (int64_t i = 0; i < count; ++i) {
        const auto in = static_cast<Accumulator<T>>(static_cast<const T*>(x)[i]);
        static_cast<T*>(y)[i] = static_cast<T>(static_cast<Accumulator<T>>(activation_value<which()>(in)));
      }
    });
  });
}

void activation_backward(void* dx, const void* dy, const void* x, int64_t count, Activation activation, bool accumulate,
                         DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    with_activation(activation, [&](auto which) {
      T* out = static_cast<T*>(dx);
      for (int64_t i = 0; i < count; ++i) {
        const auto in = static_cast<A>(static_cast<const T*>(x)[i]),
                   from = static_cast<A>(static_cast<const T*>(dy)[i]);
        const A before = accumulate ? static_cast<A>(out[i]) : A{0};
        out[i] = static_cast<T>(static_cast<A>(before + from * activation_derivative<which()>(in)));
      }
    });
  });
}

void swiglu_forward(void* y, const void* x, int64_t rows, int64_t width, DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    for (int64_t r = 0; r < rows; ++r) {
      const T* gate = static_cast<const T*>(x) + r * 2 * width;
      for (int64_t c = 0; c < width; ++c) {
        const auto g = static_cast<A>(gate[c]), up = static_cast<A>(gate[width + c]);
        static_cast<T*>(y)[r * width + c] = static_cast<T>(static_cast<A>(activation_value<Activation::silu>(g) * up));
      }
    }
  });
}

void swiglu_backward(void* dx, const void* dy, const void* x, int64_t rows, int64_t width, DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    for (int64_t r = 0; r < rows; ++r) {
      const T* gate = static_cast<const T*>(x) + r * 2 * width;
      T* dgate = static_cast<T*>(dx) + r * 2 * width;
      for (int64_t c = 0; c < width; ++c) {
        const auto g = static_cast<A>(gate[c]), up = static_cast<A>(gate[width + c]);
        const auto from = static_cast<A>(static_cast<const T*>(dy)[r * width + c]);
        dgate[c] = static_cast<T>(static_cast<A>(from * up * activation_derivative<Activation::silu>(g)));
        dgate[width + c] = static_cast<T>(static_cast<A>(from * activation_value<Activation::silu>(g)));
      }
    }
  });
}

}  // namespace esp::kernel::ref
