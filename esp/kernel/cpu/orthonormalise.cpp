#include "esp/kernel/orthonormalise.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "esp/kernel/cpu/orthonormalise.cpp"
#include <hwy/foreach_target.h>
// Includes below this line must follow hwy/foreach_target.h.
#include "esp/kernel/cpu/elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace esp::kernel::HWY_NAMESPACE {

HWY_INLINE double dot(const float* a, const float* b, int64_t count) {
  constexpr int64_t kBlock = 4096;
  double total = 0;
  for (int64_t first = 0; first < count; first += kBlock) {
    InterleavedSums<float> sums;
    each_vector_interleaved<float>(std::min(kBlock, count - first), [&](auto lanes, int64_t i, auto turn) HWY_ATTR {
      auto& sum = sums.part[decltype(turn)::value];
      sum = hn::MulAdd(lanes.load(a + first + i), lanes.load(b + first + i), sum);
    });
    total += static_cast<double>(sums.total());
  }
  return total;
}

void orthonormalise(float* rows, int64_t num_rows, int64_t count) {
  const Tag<float> d;
  for (int64_t r = 0; r < num_rows; ++r) {
    float* row = rows + r * count;
    const double before = std::sqrt(dot(row, row, count));
    for (int pass = 0; pass < 2; ++pass)
      for (int64_t q = 0; q < r; ++q) {
        const float* other = rows + q * count;
        const auto along = hn::Set(d, static_cast<float>(dot(row, other, count)));
        each_vector<float>(count, [&](auto lanes, int64_t i) HWY_ATTR {
          lanes.store(hn::NegMulAdd(along, lanes.load(other + i), lanes.load(row + i)), row + i);
        });
      }
    const double after = std::sqrt(dot(row, row, count));
    const auto factor = hn::Set(d, after <= 1e-6 * before ? 0.0f : static_cast<float>(1 / after));
    each_vector<float>(
        count, [&](auto lanes, int64_t i) HWY_ATTR { lanes.store(hn::Mul(lanes.load(row + i), factor), row + i); });
  }
}

}  // namespace esp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace esp::kernel {

HWY_EXPORT(orthonormalise);

void orthonormalise_rows(float* rows, int64_t num_rows, int64_t count) {
  HWY_DYNAMIC_DISPATCH(orthonormalise)(rows, num_rows, count);
}

}  // namespace esp::kernel
#endif
