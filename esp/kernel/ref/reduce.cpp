#include "esp/kernel/reduce.h"

#include "esp/kernel/elements.h"

namespace esp::kernel::ref {

void reduce_ordered(void* dst, const void* const* sources, int num_sources, size_t count, DType dtype, ReduceOp op) {
  ESP_CHECK(num_sources >= 1, "reduce_ordered: got {} sources; must be >= 1", num_sources);
  with_element(dtype, [&]<typename T>(std::type_identity<T>) {
    with_op(op, [&](auto which) {
      for (size_t i = 0; i < count; ++i) {
        auto value = static_cast<Accumulator<T>>(static_cast<const T*>(sources[0])[i]);
        for (int k = 1; k < num_sources; ++k)
          value = combine<which()>(value, static_cast<Accumulator<T>>(static_cast<const T*>(sources[k])[i]));
        static_cast<T*>(dst)[i] = static_cast<T>(value);
      }
    });
  });
}

void reduce(void* dst, const void* a, const void* b, size_t count, DType dtype, ReduceOp op) {
  const void* sources[] = {a, b};
  ref::reduce_ordered(dst, sources, 2, count, dtype, op);
}

void divide(void* data, size_t count, DType dtype, int divisor) {
  ESP_CHECK(divisor >= 1, "divide: got divisor {}; must be >= 1", divisor);
  with_element(dtype, [&]<typename T>(std::type_identity<T>) {
    T* values = static_cast<T*>(data);
    for (size_t i = 0; i < count; ++i) {
      if constexpr (std::is_integral_v<T>) {
        values[i] = static_cast<T>(static_cast<int64_t>(values[i]) / divisor);
      } else {
        using A = Accumulator<T>;
        values[i] = static_cast<T>(static_cast<A>(values[i]) * (A{1} / static_cast<A>(divisor)));
      }
    }
  });
}

}  // namespace esp::kernel::ref
