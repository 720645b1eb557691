// The reductions with vectors, compiled once per instruction set and chosen at run time.
//
// A block is four vectors: all sources of a block are combined in registers before its part of dst is stored, so every
// source streams once, dst is written once, and dst may be any of the sources. The rest of a buffer that is no whole
// block runs through the same code in a padded copy, so no element ever sees different arithmetic.
#include "esp/kernel/reduce.h"

#include <cstring>

#include "esp/kernel/elements.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "esp/kernel/cpu/reduce.cpp"
#include <hwy/foreach_target.h>
// foreach_target must come first
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace esp::kernel::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Lanes<T>: how elements of T come into a vector of accumulators and go back.
template <typename T>
struct Lanes {
  static constexpr bool kNative = true;
  static constexpr hn::ScalableTag<T> d{};
  static auto load(const T* from) { return hn::LoadU(d, from); }
  static void store(hn::Vec<hn::ScalableTag<T>> v, T* to) { hn::StoreU(v, d, to); }
};

template <>
struct Lanes<BFloat16> {
  static constexpr bool kNative = true;
  static constexpr hn::ScalableTag<float> d{};
  static constexpr hn::RebindToUnsigned<hn::ScalableTag<float>> du{};
  static constexpr hn::Rebind<uint16_t, hn::ScalableTag<float>> dh{};
  static auto load(const BFloat16* from) {
    auto bits = hn::PromoteTo(du, hn::LoadU(dh, reinterpret_cast<const uint16_t*>(from)));
    return hn::BitCast(d, hn::ShiftLeft<16>(bits));
  }
  // Nearest even, as BFloat16(float) does. The processor's own conversion would flush subnormals.
  static void store(hn::Vec<hn::ScalableTag<float>> v, BFloat16* to) {
    auto x = hn::BitCast(du, v);
    auto high = hn::ShiftRight<16>(x);
    auto odd = hn::And(high, hn::Set(du, 1u));
    auto rounded = hn::ShiftRight<16>(hn::Add(x, hn::Add(odd, hn::Set(du, 0x7fffu))));
    auto quiet = hn::Or(high, hn::Set(du, 0x40u));
    auto is_nan = hn::RebindMask(du, hn::IsNaN(v));
    hn::StoreU(hn::TruncateTo(dh, hn::IfThenElse(is_nan, quiet, rounded)), dh, reinterpret_cast<uint16_t*>(to));
  }
};

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
template <>
struct Lanes<Float16> {
  static constexpr bool kNative = true;
  static constexpr hn::ScalableTag<float> d{};
  static constexpr hn::Rebind<hwy::float16_t, hn::ScalableTag<float>> dh{};
  static auto load(const Float16* from) {
    return hn::PromoteTo(d, hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(from)));
  }
  static void store(hn::Vec<hn::ScalableTag<float>> v, Float16* to) {
    hn::StoreU(hn::DemoteTo(dh, v), dh, reinterpret_cast<hwy::float16_t*>(to));
  }
};
#else
template <>
struct Lanes<Float16> {
  static constexpr bool kNative = false;  // no F16C: the scalar conversions of base/half.h
};
#endif

// What the vectors can do; the rest (products of bytes and of 64-bit integers) goes through plain_blocks.
template <typename T, ReduceOp op>
constexpr bool has_vector() {
  constexpr bool narrow_or_long = sizeof(T) == 1 || (sizeof(T) == 8 && std::is_integral_v<T>);
  return Lanes<T>::kNative && !(op == ReduceOp::prod && narrow_or_long);
}

template <ReduceOp op, class V>
HWY_INLINE V combine_lanes(V a, V b) {
  if constexpr (op == ReduceOp::sum) {
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

// One block at element `i` of every source. kSources 0: as many as num_sources says.
template <typename T, ReduceOp op, int kSources>
HWY_INLINE void vector_block(T* dst, const void* const* sources, int num_sources, size_t i) {
  using L = Lanes<T>;
  const size_t n = hn::Lanes(L::d);
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
  L::store(v0, dst + i);
  L::store(v1, dst + i + n);
  L::store(v2, dst + i + 2 * n);
  L::store(v3, dst + i + 3 * n);
}

template <typename T, ReduceOp op, int kSources>
void vector_blocks(T* dst, const void* const* sources, int num_sources, size_t count) {
  const size_t block = 4 * hn::Lanes(Lanes<T>::d);
  size_t i = 0;
  for (; i + block <= count; i += block) vector_block<T, op, kSources>(dst, sources, num_sources, i);
  if (i == count) return;

  // The rest, in padded copies: two sources at a time would round 16-bit sums twice, so accumulate as the block does.
  using L = Lanes<T>;
  using A = Accumulator<T>;
  constexpr size_t kMaxBlock = 4 * HWY_MAX_BYTES / sizeof(A);
  const size_t n = hn::Lanes(L::d), rest = count - i;
  HWY_ALIGN T in[kMaxBlock] = {};
  HWY_ALIGN A sums[kMaxBlock];
  for (int k = 0; k < num_sources; ++k) {
    std::memcpy(static_cast<void*>(in), static_cast<const T*>(sources[k]) + i, rest * sizeof(T));
    for (size_t j = 0; j < rest; j += n) {
      auto v = L::load(in + j);
      hn::StoreU(k == 0 ? v : combine_lanes<op>(hn::LoadU(L::d, sums + j), v), L::d, sums + j);
    }
  }
  for (size_t j = 0; j < rest; j += n) L::store(hn::LoadU(L::d, sums + j), in + j);
  std::memcpy(static_cast<void*>(dst + i), in, rest * sizeof(T));
}

// Plain loops over an accumulator block that stays in the first-level cache.
template <typename T, ReduceOp op>
void plain_blocks(T* dst, const void* const* sources, int num_sources, size_t count) {
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
    plain_blocks<T, op>(out, sources, num_sources, count);
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
    const auto by = hn::Set(L::d, factor);
    for (; i + hn::Lanes(L::d) <= count; i += hn::Lanes(L::d)) L::store(hn::Mul(L::load(values + i), by), values + i);
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
  ESP_CHECK(num_sources >= 1, "{} sources", num_sources);
  HWY_DYNAMIC_DISPATCH(reduce_any)(dst, sources, num_sources, count, dtype, op);
}

void reduce(void* dst, const void* a, const void* b, size_t count, DType dtype, ReduceOp op) {
  const void* sources[] = {a, b};
  HWY_DYNAMIC_DISPATCH(reduce_any)(dst, sources, 2, count, dtype, op);
}

void divide(void* data, size_t count, DType dtype, int divisor) {
  ESP_CHECK(divisor >= 1, "divisor {}", divisor);
  HWY_DYNAMIC_DISPATCH(divide_any)(data, count, dtype, divisor);
}

}  // namespace esp::kernel
#endif
