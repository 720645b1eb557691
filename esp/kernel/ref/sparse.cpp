#include "esp/kernel/sparse.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "esp/kernel/magnitude.h"

namespace esp::kernel::ref {
namespace {

template <typename T>
void store(void* indices, void* values, int64_t at, int64_t index, T value) {
  const auto narrow = static_cast<uint32_t>(index);
  std::memcpy(static_cast<std::byte*>(indices) + 4 * at, &narrow, 4);
  std::memcpy(static_cast<std::byte*>(values) + static_cast<int64_t>(sizeof(T)) * at, &value, sizeof(T));
}

}  // namespace

void top_k(void* indices, void* values, const void* x, int64_t count, int64_t k, DType dtype) {
  with_real(dtype, [&]<typename T>(std::type_identity<T>) {
    const T* from = static_cast<const T*>(x);
    std::vector<int64_t> order(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) order[static_cast<size_t>(i)] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return magnitude_bits(from[a]) > magnitude_bits(from[b]); });
    std::sort(order.begin(), order.begin() + k);
    for (int64_t j = 0; j < k; ++j)
      store(indices, values, j, order[static_cast<size_t>(j)], from[order[static_cast<size_t>(j)]]);
  });
}

int64_t select_above(void* indices, void* values, const void* x, int64_t count, double threshold, DType dtype) {
  int64_t chosen = 0;
  with_real(dtype, [&]<typename T>(std::type_identity<T>) {
    for (int64_t i = 0; i < count; ++i) {
      const T v = static_cast<const T*>(x)[i];
      if (!(std::abs(v) <= static_cast<T>(threshold))) store(indices, values, chosen++, i, v);
    }
  });
  return chosen;
}

}  // namespace esp::kernel::ref
