#include "esp/kernel/weighted_sum.h"

#include "esp/kernel/floating.h"

namespace esp::kernel::ref {

void weighted_sum(void* y, std::span<const WeightedTerm> terms, int64_t count, DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    for (int64_t i = 0; i < count; ++i) {
      const auto product = [&](const WeightedTerm& term) {
        return static_cast<A>(term.weight) * static_cast<A>(static_cast<const T*>(term.x)[i]);
      };
      A sum = product(terms[0]);
      for (size_t k = 1; k < terms.size(); ++k) sum += product(terms[k]);
      static_cast<T*>(y)[i] = static_cast<T>(sum);
    }
  });
}

}  // namespace esp::kernel::ref
