// Vectorised reductions, compiled once per instruction set and dispatched at run time.
//
// A block is four vectors. All sources of a block are combined in registers before the result is stored. So every
// source is read once, dst is written once, and dst may be any of the sources. The elements after the last whole block
// are also reduced in vectors, so every element gets the same arithmetic.
#include "esp/kernel/reduce.h"

#include <cstring>

#include "esp/kernel/elements.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "esp/kernel/cpu/reduce.cpp"
#include <hwy/foreach_target.h>
// Includes below this line must follow hwy/foreach_target.h.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace esp::kernel::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Lanes<T> loads count() elements of T into accumulators, and stores accumulators as elements of T. If kNative is
// false, scalar_blocks is used instead.
template <typename T>
struct Lanes {
  static constexpr bool kNative = true;
  static constexpr hn::ScalableTag<T> d{};
  using Vec = hn::Vec<hn::ScalableTag<T>>;
  static HWY_INLINE size_t count() { return hn::Lanes(d); }
  static HWY_INLINE Vec set(T value) { return hn::Set(d, value); }
  static HWY_INLINE Vec load(const T* from) { return hn::LoadU(d, from); }
  static HWY_INLINE void store(Vec v, T* to) { hn::StoreU(v, d, to); }
  static HWY_INLINE void stream(Vec v, T* to) { hn::Stream(v, d, to); }
};

#if HWY_TARGET == HWY_SCALAR
template <>
struct Lanes<BFloat16> {
  static constexpr bool kNative = false;
};
#else
// bf16: two neighbouring elements share a 32-bit lane. A shift widens the low element and a mask widens the high one,
// so no shuffles are needed.
template <>
struct Lanes<BFloat16> {
  static constexpr bool kNative = true;
  static constexpr hn::ScalableTag<float> d{};
  static constexpr hn::ScalableTag<uint32_t> du{};
  struct Vec {
    hn::Vec<hn::ScalableTag<float>> low, high;
  };
  static HWY_INLINE size_t count() { return 2 * hn::Lanes(d); }
  static HWY_INLINE Vec set(float value) { return {hn::Set(d, value), hn::Set(d, value)}; }
  static HWY_INLINE Vec load(const BFloat16* from) {
    auto both = hn::BitCast(du, hn::LoadU(hn::ScalableTag<uint8_t>(), reinterpret_cast<const uint8_t*>(from)));
    return {hn::BitCast(d, hn::ShiftLeft<16>(both)), hn::BitCast(d, hn::And(both, hn::Set(du, 0xffff0000u)))};
  }
  // Rounds to nearest even like BFloat16(float). The result is in the upper half of the lane. The CPU's bf16 conversion
  // instruction is not used, because it flushes subnormals.
  static HWY_INLINE auto rounded(hn::Vec<hn::ScalableTag<float>> v) {
    auto x = hn::BitCast(du, v);
    auto odd = hn::And(hn::ShiftRight<16>(x), hn::Set(du, 1u));
    auto up = hn::Add(x, hn::Add(odd, hn::Set(du, 0x7fffu)));
    return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), hn::Or(x, hn::Set(du, 0x400000u)), up);
  }
  static HWY_INLINE auto packed(Vec v) {
    auto high = hn::And(rounded(v.high), hn::Set(du, 0xffff0000u));
    return hn::BitCast(hn::ScalableTag<uint8_t>(), hn::Or(hn::ShiftRight<16>(rounded(v.low)), high));
  }
  static HWY_INLINE void store(Vec v, BFloat16* to) {
    hn::StoreU(packed(v), hn::ScalableTag<uint8_t>(), reinterpret_cast<uint8_t*>(to));
  }
  static HWY_INLINE void stream(Vec v, BFloat16* to) {
    hn::Stream(packed(v), hn::ScalableTag<uint8_t>(), reinterpret_cast<uint8_t*>(to));
  }
};
#endif

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
template <>
struct Lanes<Float16> {
  static constexpr bool kNative = true;
  static constexpr hn::ScalableTag<float> d{};
  static constexpr hn::Rebind<hwy::float16_t, hn::ScalableTag<float>> dh{};
  using Vec = hn::Vec<hn::ScalableTag<float>>;
  static HWY_INLINE size_t count() { return hn::Lanes(d); }
  static HWY_INLINE Vec set(float value) { return hn::Set(d, value); }
  static HWY_INLINE Vec load(const Float16* from) {
    return hn::PromoteTo(d, hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(from)));
  }
  static HWY_INLINE void store(Vec v, Float16* to) {
    hn::StoreU(hn::DemoteTo(dh, v), dh, reinterpret_cast<hwy::float16_t*>(to));
  }
  static HWY_INLINE void stream(Vec v, Float16* to) {
    hn::Stream(hn::DemoteTo(dh, v), dh, reinterpret_cast<hwy::float16_t*>(to));
  }
};
#else
template <>
struct Lanes<Float16> {
  // CPUs without F16C: use scalar_blocks and the conversions of base/half.h
  static constexpr bool kNative = false;
};
#endif

// Returns true if the instruction set has a vector form of the operation. There is none for ReduceOp::prod on bytes and
// on 64-bit integers, which use scalar_blocks.
template <typename T, ReduceOp op>
constexpr bool has_vector() {
  constexpr bool narrow_or_long = sizeof(T) == 1 || (sizeof(T) == 8 && std::is_integral_v<T>);
  return Lanes<T>::kNative && !(op == ReduceOp::prod && narrow_or_long);
}

template <ReduceOp op, class V>
HWY_INLINE V combine_lanes(V a, V b) {
  if constexpr (requires { a.low; }) {
    return {combine_lanes<op>(a.low, b.low), combine_lanes<op>(a.high, b.high)};
  } else if constexpr (op == ReduceOp::sum) {
    return hn::Add(a, b);
  } else if constexpr (op == ReduceOp::prod) {
    return hn::Mul(a, b);
  } else if constexpr (!std::is_floating_point_v<hn::TFromV<V>>) {
    return op == ReduceOp::min ? hn::Min(a, b) : hn::Max(a, b);
  } else {
    auto first = op == ReduceOp::min ? hn::Lt(a, b) : hn::Gt(a, b);
    return hn::IfThenElse(hn::IsNaN(a), a, hn::IfThenElse(first, a, b));
  }
}

// Reduces one block, which starts at element `i` of every source. kSources = 0 means that the number of sources is
// num_sources.
template <typename T, ReduceOp op, int kSources, bool kStream>
HWY_INLINE void vector_block(T* dst, const void* const* sources, int num_sources, size_t i) {
  using L = Lanes<T>;
  const size_t n = L::count();
  const int last = kSources ? kSources : num_sources;
  const T* from = static_cast<const T*>(sources[0]) + i;
  auto v0 = L::load(from);
  auto v1 = L::load(from + n);
  auto v2 = L::load(from + 2 * n);
  auto v3 = L::load(from + 3 * n);
  for (int k = 1; k < last; ++k) {
    from = static_cast<const T*>(sources[k]) + i;
    v0 = combine_lanes<op>(v0, L::load(from));
    v1 = combine_lanes<op>(v1, L::load(from + n));
    v2 = combine_lanes<op>(v2, L::load(from + 2 * n));
    v3 = combine_lanes<op>(v3, L::load(from + 3 * n));
  }
  if constexpr (kStream) {
    L::stream(v0, dst + i);
    L::stream(v1, dst + i + n);
    L::stream(v2, dst + i + 2 * n);
    L::stream(v3, dst + i + 3 * n);
  } else {
    L::store(v0, dst + i);
    L::store(v1, dst + i + n);
    L::store(v2, dst + i + 2 * n);
    L::store(v3, dst + i + 3 * n);
  }
}

template <typename T, ReduceOp op>
HWY_INLINE typename Lanes<T>::Vec vector_at(const void* const* sources, int num_sources, size_t i) {
  using L = Lanes<T>;
  auto v = L::load(static_cast<const T*>(sources[0]) + i);
  for (int k = 1; k < num_sources; ++k) v = combine_lanes<op>(v, L::load(static_cast<const T*>(sources[k]) + i));
  return v;
}

// Reduces the last elements, less than one vector, in copies padded to a whole vector.
template <typename T, ReduceOp op>
void reduce_tail(T* dst, const void* const* sources, int num_sources, size_t count) {
  using L = Lanes<T>;
  HWY_ALIGN T padded[HWY_MAX_BYTES / sizeof(T)] = {};
  auto copied = [&](int k) HWY_ATTR {
    std::memcpy(static_cast<void*>(padded), sources[k], count * sizeof(T));
    return L::load(padded);
  };
  auto v = copied(0);
  for (int k = 1; k < num_sources; ++k) v = combine_lanes<op>(v, copied(k));
  L::store(v, padded);
  std::memcpy(static_cast<void*>(dst), padded, count * sizeof(T));
}

// From this size on, results are much larger than the caches and use streaming stores. Normal stores would first read
// the cache lines that they overwrite. In-place reductions use normal stores, because they read these lines anyway.
constexpr size_t kStreamBytes = size_t{16} << 20;

template <typename T>
bool use_streaming_stores(const T* dst, const void* const* sources, int num_sources, size_t count) {
  if (count * sizeof(T) < kStreamBytes) return false;
  for (int k = 0; k < num_sources; ++k)
    if (sources[k] == dst) return false;
  return true;
}

template <typename T, ReduceOp op, int kSources>
void vector_blocks(T* dst, const void* const* sources, int num_sources, size_t count) {
  using L = Lanes<T>;
  const size_t n = L::count(), block = 4 * n;
  if (count < n) return reduce_tail<T, op>(dst, sources, num_sources, count);
  // The last vector overlaps elements that the loops below write, and dst may be a source. So it is computed first and
  // stored last.
  const auto tail = vector_at<T, op>(sources, num_sources, count - n);
  size_t i = 0;
  if (use_streaming_stores(dst, sources, num_sources, count)) {
    L::store(vector_at<T, op>(sources, num_sources, 0), dst);
    i = n - reinterpret_cast<uintptr_t>(dst) / sizeof(T) % n;  // streaming stores require whole, aligned vectors
    for (; i + block <= count; i += block) vector_block<T, op, kSources, true>(dst, sources, num_sources, i);
    hwy::FlushStream();
  } else {
    for (; i + block <= count; i += block) vector_block<T, op, kSources, false>(dst, sources, num_sources, i);
  }
  for (; i + n < count; i += n) L::store(vector_at<T, op>(sources, num_sources, i), dst + i);
  L::store(tail, dst + count - n);
}

// Scalar loops over a block of accumulators, which stays in L1.
template <typename T, ReduceOp op>
void scalar_blocks(T* dst, const void* const* sources, int num_sources, size_t count) {
  constexpr size_t kBlock = 1024;
  Accumulator<T> sums[kBlock];
  for (size_t i = 0; i < count; i += kBlock) {
    const size_t n = count - i < kBlock ? count - i : kBlock;
    const T* from = static_cast<const T*>(sources[0]) + i;
    for (size_t j = 0; j < n; ++j) sums[j] = static_cast<Accumulator<T>>(from[j]);
    for (int k = 1; k < num_sources; ++k) {
      from = static_cast<const T*>(sources[k]) + i;
      for (size_t j = 0; j < n; ++j) sums[j] = combine<op>(sums[j], static_cast<Accumulator<T>>(from[j]));
    }
    for (size_t j = 0; j < n; ++j) dst[i + j] = static_cast<T>(sums[j]);
  }
}

template <typename T, ReduceOp op>
void reduce_as(void* dst, const void* const* sources, int num_sources, size_t count) {
  T* out = static_cast<T*>(dst);
  if constexpr (!has_vector<T, op>()) {
    scalar_blocks<T, op>(out, sources, num_sources, count);
  } else if (num_sources == 2) {
    vector_blocks<T, op, 2>(out, sources, 2, count);
  } else {
    vector_blocks<T, op, 0>(out, sources, num_sources, count);
  }
}

template <typename T>
void scale_as(T* values, size_t count, Accumulator<T> factor) {
  size_t i = 0;
  if constexpr (Lanes<T>::kNative) {
    using L = Lanes<T>;
    const size_t n = L::count();
    const auto by = L::set(factor);
    for (; i + n <= count; i += n) L::store(combine_lanes<ReduceOp::prod>(L::load(values + i), by), values + i);
  }
  for (; i < count; ++i) values[i] = static_cast<T>(static_cast<Accumulator<T>>(values[i]) * factor);
}

void reduce_any(void* dst, const void* const* sources, int num_sources, size_t count, DType dtype, ReduceOp op) {
  with_element(dtype, [&]<typename T>(std::type_identity<T>) {
    with_op(op, [&](auto which) { reduce_as<T, which()>(dst, sources, num_sources, count); });
  });
}

void divide_any(void* data, size_t count, DType dtype, int divisor) {
  with_element(dtype, [&]<typename T>(std::type_identity<T>) {
    T* values = static_cast<T*>(data);
    if constexpr (std::is_integral_v<T>) {
      for (size_t i = 0; i < count; ++i) values[i] = static_cast<T>(static_cast<int64_t>(values[i]) / divisor);
    } else {
      scale_as<T>(values, count, Accumulator<T>{1} / static_cast<Accumulator<T>>(divisor));
    }
  });
}

}  // namespace esp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace esp::kernel {

HWY_EXPORT(reduce_any);
HWY_EXPORT(divide_any);

void reduce_ordered(void* dst, const void* const* sources, int num_sources, size_t count, DType dtype, ReduceOp op) {
  ESP_CHECK(num_sources >= 1, "reduce_ordered: got {} sources; must be >= 1", num_sources);
  HWY_DYNAMIC_DISPATCH(reduce_any)(dst, sources, num_sources, count, dtype, op);
}

void reduce(void* dst, const void* a, const void* b, size_t count, DType dtype, ReduceOp op) {
  const void* sources[] = {a, b};
  HWY_DYNAMIC_DISPATCH(reduce_any)(dst, sources, 2, count, dtype, op);
}

void divide(void* data, size_t count, DType dtype, int divisor) {
  ESP_CHECK(divisor >= 1, "divide: got divisor {}; must be >= 1", divisor);
  HWY_DYNAMIC_DISPATCH(divide_any)(data, count, dtype, divisor);
}

}  // namespace esp::kernel
#endif
