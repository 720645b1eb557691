// Weighted sum of arrays. All terms of a vector are combined in registers before the result is stored, so every term is
// read once.
#include "esp/kernel/weighted_sum.h"
#include "esp/kernel/cuda_dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "esp/kernel/cpu/weighted_sum.cpp"
#include <hwy/foreach_target.h>
// Includes below this line must follow hwy/foreach_target.h.
#include "esp/kernel/cpu/elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace esp::kernel::HWY_NAMESPACE {

// Processes elements [first, first + count).
void weighted_sum_range(void* y, std::span<const WeightedTerm> terms, int64_t first, int64_t count, DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    const auto product = [&](auto lanes, const WeightedTerm& term, int64_t i) HWY_ATTR {
      return hn::Mul(lanes.load(static_cast<const T*>(term.x) + first + i),
                     hn::Set(Tag<T>(), static_cast<Accumulator<T>>(term.weight)));
    };
    each_vector<T>(count, [&](auto lanes, int64_t i) HWY_ATTR {
      auto sum = product(lanes, terms[0], i);
      for (size_t k = 1; k < terms.size(); ++k) sum = hn::Add(sum, product(lanes, terms[k], i));
      lanes.store(sum, static_cast<T*>(y) + first + i);
    });
  });
}

}  // namespace esp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace esp::kernel {

HWY_EXPORT(weighted_sum_range);

void weighted_sum(void* y, std::span<const WeightedTerm> terms, int64_t count, DType dtype,
                  const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::weighted_sum(y, terms, count, dtype, stream);
  const auto piece = HWY_DYNAMIC_DISPATCH(weighted_sum_range);
  device::parallel_for(stream, count, kElementGrain,
                       [&](int64_t begin, int64_t end) { piece(y, terms, begin, end - begin, dtype); });
}

}  // namespace esp::kernel
#endif
