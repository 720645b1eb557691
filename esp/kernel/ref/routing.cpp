#include "esp/kernel/routing.h"

#include "esp/kernel/floating.h"

namespace esp::kernel::ref {

void combine_forward(void* y, const void* x, const void* gates, const int32_t* places, bool accumulate,
                     const CombineShape& shape, DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    for (int64_t r = 0; r < shape.rows; ++r)
      for (int64_t c = 0; c < shape.dim; ++c) {
        T& to = static_cast<T*>(y)[r * shape.dim + c];
        A sum = accumulate ? static_cast<A>(to) : A{0};
        for (int64_t j = 0; j < shape.num_chosen; ++j) {
          const int64_t choice = r * shape.num_chosen + j;
          if (places[choice] < 0) continue;
          const A gate = gates ? static_cast<const A*>(gates)[choice] : A{1};
          sum += gate * static_cast<A>(static_cast<const T*>(x)[places[choice] * shape.dim + c]);
        }
        to = static_cast<T>(sum);
      }
  });
}

void combine_backward(void* dx, void* dgates, const void* dy, const void* x, const void* gates, const int32_t* places,
                      const CombineShape& shape, DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    for (int64_t choice = 0; choice < shape.rows * shape.num_chosen; ++choice) {
      const T* from = static_cast<const T*>(dy) + choice / shape.num_chosen * shape.dim;
      A product = 0;
      for (int64_t c = 0; c < shape.dim && places[choice] >= 0; ++c) {
        const int64_t at = places[choice] * shape.dim + c;
        product += static_cast<A>(from[c]) * static_cast<A>(static_cast<const T*>(x)[at]);
        static_cast<T*>(dx)[at] = static_cast<T>(static_cast<const A*>(gates)[choice] * static_cast<A>(from[c]));
      }
      static_cast<A*>(dgates)[choice] = product;
    }
  });
}

}  // namespace esp::kernel::ref
