// Packing for gemm: a panel is `width` neighbouring rows of op(A), or columns of op(B), depth by depth:
// panel[p·width + line]. 16-bit elements are widened here, transposes happen here, and lines past the end are zero.
//
// A panel may be written up to a vector past its end, so panels of one buffer are packed in ascending order and the
// buffer has slack (kPanelSlack). B's panels are whole vectors wide and stay inside, so threads may share them out.
#if defined(ESP_KERNEL_CPU_GEMM_PACK_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ESP_KERNEL_CPU_GEMM_PACK_INL_H
#undef ESP_KERNEL_CPU_GEMM_PACK_INL_H
#else
#define ESP_KERNEL_CPU_GEMM_PACK_INL_H
#endif

#include <algorithm>

#include "esp/kernel/cpu/elements-inl.h"
#include "esp/kernel/cpu/gemm_blocks.h"

HWY_BEFORE_NAMESPACE();
namespace esp::kernel::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr int64_t kPanelSlack = HWY_MAX_BYTES / 4;

// Lines are neighbours in memory: from[p·stride + line]. `extent` elements of each row may be read.
template <typename T>
void pack_along(Accumulator<T>* to, int64_t width, const T* from, int64_t stride, int64_t extent, int64_t depth) {
  const int64_t n = lanes_of<T>();
  for (int64_t p = 0; p < depth; ++p, to += width, from += stride)
    for (int64_t i = 0; i < width; i += n) {
      if (i + n <= extent) {
        store_lanes(load_lanes(from + i), to + i);
      } else {
        store_lanes(Part{static_cast<size_t>(std::max<int64_t>(0, extent - i))}.load(from + i), to + i);
      }
    }
}

#if HWY_TARGET == HWY_SCALAR
// Lines are rows of memory: from[line·stride + p].
template <typename T>
void pack_across(Accumulator<T>* to, int64_t width, const T* from, int64_t stride, int64_t lines, int64_t depth) {
  for (int64_t p = 0; p < depth; ++p)
    for (int64_t line = 0; line < width; ++line)
      to[p * width + line] = line < lines ? static_cast<Accumulator<T>>(from[line * stride + p]) : Accumulator<T>{0};
}
#else
// Stores the 128-bit blocks of v, `step` apart, the first `count` of them.
template <class D, class V, typename A>
HWY_INLINE void store_blocks(D d, V v, A* to, int64_t step, int64_t count) {
  if constexpr (hn::MaxLanes(D()) * sizeof(A) == 16) {
    if (count > 0) hn::StoreU(v, d, to);
  } else {
    const hn::Half<D> half;
    const int64_t below = static_cast<int64_t>(hn::Lanes(half) * sizeof(A) / 16);
    store_blocks(half, hn::LowerHalf(half, v), to, step, count);
    store_blocks(half, hn::UpperHalf(half, v), to + below * step, step, count - below);
  }
}

// One vector of depths of as many lines as a 128-bit block holds: transposed block by block.
template <class LoadLine, typename A>
HWY_INLINE void transpose_lines(LoadLine line, A* to, int64_t width, int64_t depth) {
  const hn::ScalableTag<A> d;
  const auto v0 = line(0), v1 = line(1);
  if constexpr (sizeof(A) == 8) {
    store_blocks(d, hn::InterleaveLower(d, v0, v1), to, 2 * width, (depth + 1) / 2);
    store_blocks(d, hn::InterleaveUpper(d, v0, v1), to + width, 2 * width, depth / 2);
  } else {
    const hn::RepartitionToWide<decltype(d)> pairs;
    const auto v2 = line(2), v3 = line(3);
    const auto low01 = hn::BitCast(pairs, hn::InterleaveLower(d, v0, v1));
    const auto high01 = hn::BitCast(pairs, hn::InterleaveUpper(d, v0, v1));
    const auto low23 = hn::BitCast(pairs, hn::InterleaveLower(d, v2, v3));
    const auto high23 = hn::BitCast(pairs, hn::InterleaveUpper(d, v2, v3));
    const int64_t step = 4 * width;
    store_blocks(d, hn::BitCast(d, hn::InterleaveLower(pairs, low01, low23)), to, step, (depth + 3) / 4);
    store_blocks(d, hn::BitCast(d, hn::InterleaveUpper(pairs, low01, low23)), to + width, step, (depth + 2) / 4);
    store_blocks(d, hn::BitCast(d, hn::InterleaveLower(pairs, high01, high23)), to + 2 * width, step, (depth + 1) / 4);
    store_blocks(d, hn::BitCast(d, hn::InterleaveUpper(pairs, high01, high23)), to + 3 * width, step, depth / 4);
  }
}

// Lines are rows of memory: from[line·stride + p]. The last group of lines comes first: where the width is no multiple
// of a group it spills into the next depth, whose own lines are written after it.
template <typename T>
void pack_across(Accumulator<T>* to, int64_t width, const T* from, int64_t stride, int64_t lines, int64_t depth) {
  using A = Accumulator<T>;
  constexpr int64_t kGroup = 16 / sizeof(A);
  const int64_t n = lanes_of<T>();
  for (int64_t group = divided_up(width, kGroup) * kGroup - kGroup; group >= 0; group -= kGroup) {
    const T* rows = from + group * stride;
    const int64_t present = lines - group;
    int64_t p = 0;
    if (present >= kGroup)
      for (; p + n <= depth; p += n) {
        auto line = [&](int i) HWY_ATTR { return load_lanes(rows + i * stride + p); };
        transpose_lines(line, to + p * width + group, width, n);
      }
    for (; p < depth; p += n) {
      const int64_t rest = std::min(n, depth - p);
      auto line = [&](int i) HWY_ATTR {
        return i < present ? Part{static_cast<size_t>(rest)}.load(rows + i * stride + p) : hn::Zero(Tag<T>());
      };
      transpose_lines(line, to + p * width + group, width, rest);
    }
  }
}
#endif

}  // namespace esp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
