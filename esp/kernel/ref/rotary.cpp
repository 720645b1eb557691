#include <cmath>

#include "esp/kernel/embedding.h"
#include "esp/kernel/floating.h"

namespace esp::kernel::ref {

void rotary(void* x, const RotaryShape& shape, DType dtype) {
  const int64_t half = shape.head_dim / 2;
  const RotaryFrequencies frequencies = rotary_frequencies(shape.angles, shape.head_dim);
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    for (int64_t r = 0; r < shape.rows; ++r) {
      const int64_t row = r % shape.period;
      if (row < shape.begin || row >= shape.last()) continue;
      for (int64_t d = 0; d < half; ++d) {
        const double position = static_cast<double>(shape.first_position + row - shape.begin);
        const double angle = position * frequencies.scaled(plain_frequency(shape.angles, d, shape.head_dim), d);
        const double sine = frequencies.size * std::sin(angle);
        const A c = static_cast<A>(frequencies.size * std::cos(angle)),
                s = static_cast<A>(shape.inverse ? -sine : sine);
        for (int64_t h = 0; h < shape.heads; ++h) {
          T* low = static_cast<T*>(x) + r * shape.row_stride + h * shape.head_dim + d;
          const A a = static_cast<A>(low[0]), b = static_cast<A>(low[half]);
          low[0] = static_cast<T>(a * c - b * s);
          low[half] = static_cast<T>(b * c + a * s);
        }
      }
    }
  });
}

}  // namespace esp::kernel::ref
