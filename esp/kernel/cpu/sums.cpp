// Sums over whole buffers, and a check that all elements are finite.
//
// Squares are summed in fp64 per block of 4096 elements. The calling thread adds the block sums in order, so the result
// does not depend on the number of threads. The block sums of one round fit on the stack, so nothing is allocated.
#include <algorithm>
#include <atomic>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "esp/kernel/cpu/sums.cpp"
#include <hwy/foreach_target.h>
// Includes below this line must follow hwy/foreach_target.h.
#include "esp/kernel/cpu/elements-inl.h"
#include "esp/kernel/cuda/device_scalars.h"
#include "esp/kernel/cuda_dispatch.h"
#include "esp/kernel/elementwise.h"

HWY_BEFORE_NAMESPACE();
namespace esp::kernel::HWY_NAMESPACE {

// Widens one vector of float to two vectors of double. The conversion goes through the stack, because this keeps the
// elements in memory order.
template <typename T>
double squares_of(const T* x, int64_t count) {
  const Tag<double> d;
  InterleavedSums<double> total;
  if constexpr (std::is_same_v<T, double>) {
    each_vector_interleaved<T>(count, [&](auto lanes, int64_t i, auto turn) HWY_ATTR {
      const auto v = lanes.load(x + i);
      total.part[turn()] = hn::MulAdd(v, v, total.part[turn()]);
    });
  } else {
    const hn::Rebind<float, Tag<double>> narrow;
    const int64_t half = lanes_of<double>();
    each_vector_interleaved<T>(count, [&](auto lanes, int64_t i, auto turn) HWY_ATTR {
      constexpr int kFirst = turn() % 2 * 2;
      HWY_ALIGN float wide[hn::MaxLanes(Tag<float>())];
      hn::Store(lanes.load(x + i), Tag<float>(), wide);
      for (int64_t k = 0; k < lanes_of<float>(); k += half) {
        const auto v = hn::PromoteTo(d, hn::LoadU(narrow, wide + k));
        auto& part = total.part[k == 0 ? kFirst : kFirst + 1];
        part = hn::MulAdd(v, v, part);
      }
    });
  }
  return total.total();
}

double squares_range(const void* x, int64_t count, DType dtype) {
  double total = 0;
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) { total = squares_of(static_cast<const T*>(x), count); });
  return total;
}

// Returns true if all values are finite. `mask` selects the exponent bits. They are all ones in a non-finite value, so
// every finite value is below `mask` after masking.
template <typename U>
bool exponents_below(const U* x, int64_t count, U mask) {
  const hn::ScalableTag<U> d;
  const int64_t n = static_cast<int64_t>(hn::Lanes(d));
  constexpr int64_t kBlock = 4096;
  const auto ones = hn::Set(d, mask);
  for (int64_t first = 0; first < count; first += kBlock) {
    const int64_t end = std::min(first + kBlock, count);
    auto most0 = hn::Zero(d), most1 = most0;
    int64_t i = first;
    for (; i + 2 * n <= end; i += 2 * n) {
      most0 = hn::Max(most0, hn::And(hn::LoadU(d, x + i), ones));
      most1 = hn::Max(most1, hn::And(hn::LoadU(d, x + i + n), ones));
    }
    if (!hn::AllFalse(d, hn::Eq(hn::Max(most0, most1), ones))) return false;
    for (; i < end; ++i)
      if ((x[i] & mask) == mask) return false;
  }
  return true;
}

bool finite_range(const void* x, int64_t count, DType dtype) {
  switch (dtype) {
    case DType::f64:
      return exponents_below(static_cast<const uint64_t*>(x), count, uint64_t{0x7ff0000000000000u});
    case DType::f32:
      return exponents_below(static_cast<const uint32_t*>(x), count, uint32_t{0x7f800000u});
    case DType::bf16:
      return exponents_below(static_cast<const uint16_t*>(x), count, uint16_t{0x7f80u});
    case DType::f16:
      return exponents_below(static_cast<const uint16_t*>(x), count, uint16_t{0x7c00u});
    default:
      ESP_CHECK(false, "all_finite: got dtype {}; expected a floating-point type", name_of(dtype));
  }
}

}  // namespace esp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace esp::kernel {

HWY_EXPORT(squares_range);
HWY_EXPORT(finite_range);

double sum_of_squares(const void* x, int64_t count, DType dtype, const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::sum_of_squares(x, count, dtype, stream);
  constexpr int64_t kBlock = 4096, kBlocks = 2048;
  const auto piece = HWY_DYNAMIC_DISPATCH(squares_range);
  double total = 0, sums[kBlocks];
  for (int64_t first = 0; first < count; first += kBlock * kBlocks) {
    const int64_t n = std::min(kBlock * kBlocks, count - first), blocks = (n + kBlock - 1) / kBlock;
    device::parallel_for(stream, blocks, 4, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b)
        sums[b] = piece(at(x, first + b * kBlock, dtype), std::min(kBlock, n - b * kBlock), dtype);
    });
    for (int64_t b = 0; b < blocks; ++b) total += sums[b];
  }
  return total;
}

bool all_finite(const void* x, int64_t count, DType dtype, const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::all_finite(x, count, dtype, stream);
  const auto piece = HWY_DYNAMIC_DISPATCH(finite_range);
  std::atomic<bool> finite{true};
  device::parallel_for(stream, count, kElementGrain, [&](int64_t begin, int64_t end) {
    if (!piece(at(x, begin, dtype), end - begin, dtype)) finite.store(false, std::memory_order_relaxed);
  });
  return finite.load();
}

void sum_of_squares_to(double* total, const void* x, int64_t count, DType dtype, const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::sum_of_squares_to(total, false, x, count, dtype, stream);
  *total = sum_of_squares(x, count, dtype, stream);
}

void sum_to(double* total, const void* x, int64_t count, DType dtype, const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::sum_to(total, x, count, dtype, stream);
  *total = sum(x, count, dtype, stream);
}

double sum(const void* x, int64_t count, DType dtype, const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::sum(x, count, dtype, stream);
  double total = 0;
  for (int64_t i = 0; i < count; ++i)
    total += dtype == DType::f64 ? static_cast<const double*>(x)[i] : double{static_cast<const float*>(x)[i]};
  return total;
}

}  // namespace esp::kernel
#endif
