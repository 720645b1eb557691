#include "esp/kernel/frozen_rates.h"

#include <cmath>

#include "esp/kernel/magnitude.h"

namespace esp::kernel {

void frozen_rates(void* rate, void* mask, const void* v, double eps, int64_t count, DType dtype,
                  const device::Stream& stream) {
  with_real(dtype, [&]<typename T>(std::type_identity<T>) {
    device::parallel_for(stream, count, int64_t{1} << 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const T variance = static_cast<const T*>(v)[i];
        static_cast<T*>(mask)[i] = variance > 0 ? T{1} : T{0};
        static_cast<T*>(rate)[i] = variance > 0 ? 1 / (std::sqrt(variance) + static_cast<T>(eps)) : T{0};
      }
    });
  });
}

}  // namespace esp::kernel
