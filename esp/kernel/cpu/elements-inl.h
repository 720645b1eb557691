// Vector loads and stores for arrays of any floating-point type. In registers the elements have the accumulation type:
// loads widen 16-bit elements to float, and stores round to nearest even. f32 and f64 are not converted.
//
// each_vector loops over an array. It calls its function with a FullVector, and for the last elements with a
// PartialVector. Both use the same arithmetic, so the result of an element does not depend on where an array is split.
// Included once per instruction set, outside of namespaces, after foreach_target.h.
#if defined(ESP_KERNEL_CPU_ELEMENTS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ESP_KERNEL_CPU_ELEMENTS_INL_H
#undef ESP_KERNEL_CPU_ELEMENTS_INL_H
#else
#define ESP_KERNEL_CPU_ELEMENTS_INL_H
#endif

#include <cstdint>
#include <cstring>

#include <hwy/highway.h>

#include "esp/kernel/floating.h"

HWY_BEFORE_NAMESPACE();
namespace esp::kernel::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <typename T>
using Tag = hn::ScalableTag<Accumulator<T>>;
template <typename T>
using Vec = hn::Vec<Tag<T>>;

template <typename T>
HWY_INLINE int64_t lanes_of() {
  return static_cast<int64_t>(hn::Lanes(Tag<T>()));
}

HWY_INLINE Vec<float> load_lanes(const float* from) {
  return hn::LoadU(Tag<float>(), from);
}
HWY_INLINE Vec<double> load_lanes(const double* from) {
  return hn::LoadU(Tag<double>(), from);
}
HWY_INLINE void store_lanes(Vec<float> v, float* to) {
  hn::StoreU(v, Tag<float>(), to);
}
HWY_INLINE void store_lanes(Vec<double> v, double* to) {
  hn::StoreU(v, Tag<double>(), to);
}

HWY_INLINE Vec<float> load_lanes(const BFloat16* from) {
  const hn::Rebind<uint16_t, Tag<float>> narrow;
  const hn::RebindToUnsigned<Tag<float>> wide;
  const auto bits = hn::PromoteTo(wide, hn::LoadU(narrow, reinterpret_cast<const uint16_t*>(from)));
  return hn::BitCast(Tag<float>(), hn::ShiftLeft<16>(bits));
}
#if HWY_TARGET == HWY_SCALAR
HWY_INLINE void store_lanes(Vec<float> v, BFloat16* to) {
  *to = static_cast<BFloat16>(hn::GetLane(v));
}
#else
// Rounds like BFloat16(float). The CPU's bf16 conversion instruction is not used, because it flushes subnormals.
HWY_INLINE void store_lanes(Vec<float> v, BFloat16* to) {
  const hn::Rebind<uint16_t, Tag<float>> narrow;
  const hn::RebindToUnsigned<Tag<float>> wide;
  const hn::Repartition<uint16_t, Tag<float>> halves;
  const auto x = hn::BitCast(wide, v);
  const auto odd = hn::And(hn::ShiftRight<16>(x), hn::Set(wide, 1u));
  const auto nearest = hn::Add(x, hn::Add(odd, hn::Set(wide, 0x7fffu)));
  const auto is_nan = hn::RebindMask(wide, hn::IsNaN(v));
  const auto rounded = hn::BitCast(halves, hn::IfThenElse(is_nan, hn::Or(x, hn::Set(wide, 0x400000u)), nearest));
  const auto upper = hn::LowerHalf(hn::ConcatOdd(halves, rounded, rounded));  // the upper 16 bits of every lane
  hn::StoreU(upper, narrow, reinterpret_cast<uint16_t*>(to));
}
#endif

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
HWY_INLINE Vec<float> load_lanes(const Float16* from) {
  const hn::Rebind<hwy::float16_t, Tag<float>> narrow;
  return hn::PromoteTo(Tag<float>(), hn::LoadU(narrow, reinterpret_cast<const hwy::float16_t*>(from)));
}
HWY_INLINE void store_lanes(Vec<float> v, Float16* to) {
  const hn::Rebind<hwy::float16_t, Tag<float>> narrow;
  hn::StoreU(hn::DemoteTo(narrow, v), narrow, reinterpret_cast<hwy::float16_t*>(to));
}
#else  // CPUs without F16C: use the conversions of base/half.h
HWY_INLINE Vec<float> load_lanes(const Float16* from) {
  HWY_ALIGN float wide[hn::MaxLanes(Tag<float>())];
  for (int64_t i = 0; i < lanes_of<float>(); ++i) wide[i] = static_cast<float>(from[i]);
  return hn::Load(Tag<float>(), wide);
}
HWY_INLINE void store_lanes(Vec<float> v, Float16* to) {
  HWY_ALIGN float wide[hn::MaxLanes(Tag<float>())];
  hn::Store(v, Tag<float>(), wide);
  for (int64_t i = 0; i < lanes_of<float>(); ++i) to[i] = static_cast<Float16>(wide[i]);
}
#endif

struct FullVector {
  template <typename T>
  HWY_INLINE Vec<T> load(const T* from) const {
    return load_lanes(from);
  }
  template <typename T>
  HWY_INLINE void store(Vec<T> v, T* to) const {
    store_lanes(v, to);
  }
  template <class V>
  HWY_INLINE V keep(V v) const {
    return v;
  }
};

// The first `count` lanes of a vector. The other lanes load as 0 and are not stored.
struct PartialVector {
  size_t count;
  template <typename T>
  HWY_INLINE Vec<T> load(const T* from) const {
    HWY_ALIGN T padded[hn::MaxLanes(Tag<T>())] = {};
    std::memcpy(static_cast<void*>(padded), from, count * sizeof(T));
    return load_lanes(padded);
  }
  template <typename T>
  HWY_INLINE void store(Vec<T> v, T* to) const {
    HWY_ALIGN T padded[hn::MaxLanes(Tag<T>())];
    store_lanes(v, padded);
    std::memcpy(static_cast<void*>(to), padded, count * sizeof(T));
  }
  template <class V>
  HWY_INLINE V keep(V v) const {  // sets the lanes past the end of the array to zero
    return hn::IfThenElseZero(hn::FirstN(hn::DFromV<V>(), count), v);
  }
};

// Calls f(lanes, i) for every vector of `count` elements.
template <typename T, class F>
HWY_INLINE void each_vector(int64_t count, F&& f) {
  const int64_t n = lanes_of<T>();
  int64_t i = 0;
  for (; i + n <= count; i += n) f(FullVector{}, i);
  if (i < count) f(PartialVector{static_cast<size_t>(count - i)}, i);
}

// Four interleaved sums: consecutive additions do not wait for each other. The order of additions depends only on the
// number of elements.
template <typename T>
struct InterleavedSums {
  Vec<T> part[4];
  HWY_INLINE InterleavedSums() { part[0] = part[1] = part[2] = part[3] = hn::Zero(Tag<T>()); }
  HWY_INLINE Accumulator<T> total() const {
    const auto all = hn::Add(hn::Add(part[0], part[1]), hn::Add(part[2], part[3]));
    return hn::GetLane(hn::SumOfLanes(Tag<T>(), all));
  }
};

// Calls f(lanes, i, turn) for every vector. `turn` is std::integral_constant<int, 0…3>: the index of the interleaved
// sum.
template <typename T, class F>
HWY_INLINE void each_vector_interleaved(int64_t count, F&& f) {
  const int64_t n = lanes_of<T>();
  int64_t i = 0;
  for (; i + 4 * n <= count; i += 4 * n) {
    f(FullVector{}, i, std::integral_constant<int, 0>{});
    f(FullVector{}, i + n, std::integral_constant<int, 1>{});
    f(FullVector{}, i + 2 * n, std::integral_constant<int, 2>{});
    f(FullVector{}, i + 3 * n, std::integral_constant<int, 3>{});
  }
  for (; i + n <= count; i += n) f(FullVector{}, i, std::integral_constant<int, 0>{});
  if (i < count) f(PartialVector{static_cast<size_t>(count - i)}, i, std::integral_constant<int, 1>{});
}

}  // namespace esp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // included once per instruction set
