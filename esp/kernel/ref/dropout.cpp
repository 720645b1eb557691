#include "esp/kernel/dropout.h"

#include "esp/base/rng.h"
#include "esp/kernel/floating.h"

namespace esp::kernel::ref {
namespace {

bool is_kept(uint64_t index, double rate, DropoutKey key) {
  const uint64_t block = index / 4;
  const auto words = philox({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                             static_cast<uint32_t>(key.purpose), static_cast<uint32_t>(key.purpose >> 32)},
                            {static_cast<uint32_t>(key.seed), static_cast<uint32_t>(key.seed >> 32)});
  return words[index % 4] >= rate * 0x1p32;
}

}  // namespace

void dropout(void* y, const void* x, const void* residual, const DropoutShape& shape, DropoutKey key, DType dtype) {
  ESP_CHECK(shape.rate >= 0 && shape.rate < 1, "dropout rate: got {}; must be >= 0 and < 1", shape.rate);
  const int64_t stride = shape.row_stride ? shape.row_stride : shape.cols;
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    const A scale = static_cast<A>(1 / (1 - shape.rate));
    for (int64_t i = 0; i < shape.rows * shape.cols; ++i) {
      const int64_t row = i / shape.cols, col = i % shape.cols;
      const int64_t index = (shape.first_row + row) * stride + shape.first_col + col;
      A value = is_kept(static_cast<uint64_t>(index), shape.rate, key)
                    ? static_cast<A>(static_cast<const T*>(x)[i]) * scale
                    : A{0};
      if (residual) value += static_cast<A>(static_cast<const T*>(residual)[i]);
      static_cast<T*>(y)[i] = static_cast<T>(value);
    }
  });
}

}  // namespace esp::kernel::ref
