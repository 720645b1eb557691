// Packing for gemm: a panel is kWidth neighbouring rows of op(A), or columns of op(B), depth by depth:
// panel[p·kWidth + line]. 16-bit elements are widened here, transposes happen here, and lines past the end are zero.
//
// Panels follow each other, kWidth·depth apart. Packing across lines may write up to a vector past a panel's end where
// its width is no multiple of a 128-bit block: panels are packed in ascending order and the buffer has slack.
#if defined(ESP_KERNEL_CPU_GEMM_PACK_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ESP_KERNEL_CPU_GEMM_PACK_INL_H
#undef ESP_KERNEL_CPU_GEMM_PACK_INL_H
#else
#define ESP_KERNEL_CPU_GEMM_PACK_INL_H
#endif

#include <algorithm>
#include <cstring>

#include <hwy/cache_control.h>

#include "esp/kernel/cpu/elements-inl.h"
#include "esp/kernel/cpu/gemm_blocks.h"

HWY_BEFORE_NAMESPACE();
namespace esp::kernel::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr int64_t kPanelSlack = HWY_MAX_BYTES / 4;

template <int64_t kWidth, typename T>
HWY_INLINE void copy_lines(Accumulator<T>* to, const T* from, int64_t extent) {
  using A = Accumulator<T>;
  constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(Tag<T>())),
                    kReads = (kWidth + kLanes - 1) / kLanes * kLanes;
  if (extent < (std::is_same_v<T, A> ? kWidth : kReads)) {
    for (int64_t i = 0; i < kWidth; ++i) to[i] = i < extent ? static_cast<A>(from[i]) : A{0};
  } else if constexpr (kReads == kWidth) {
    for (int64_t i = 0; i < kWidth; i += kLanes) store_lanes(load_lanes(from + i), to + i);
  } else if constexpr (std::is_same_v<T, A>) {
    std::memcpy(to, from, sizeof(A) * kWidth);
  } else {
    HWY_ALIGN A wide[kReads];
    for (int64_t i = 0; i < kWidth; i += kLanes) store_lanes(load_lanes(from + i), wide + i);
    std::memcpy(to, wide, sizeof(A) * kWidth);
  }
}

// Lines are neighbours in memory: from[p·stride + line]; `extent` of each row may be read. Rows of memory are read
// through, a few at a time, so that what a panel gets at once is whole cache lines.
template <int64_t kWidth, typename T>
void pack_along(Accumulator<T>* to, const T* from, int64_t stride, int64_t lines, int64_t extent, int64_t depth) {
  constexpr int64_t kRows = 4;
  for (int64_t p = 0; p < depth; p += kRows) {
    const int64_t rows = std::min(kRows, depth - p);
    for (int64_t line = 0; line < lines; line += kWidth) {
      Accumulator<T>* panel = to + line * depth + p * kWidth;
      for (int64_t row = 0; row < rows; ++row)
        copy_lines<kWidth>(panel + row * kWidth, from + (p + row) * stride + line, extent - line);
    }
  }
}

#if HWY_TARGET == HWY_SCALAR
// Lines are rows of memory: from[line·stride + p]; `extent` lines may be read.
template <int64_t kWidth, typename T>
void pack_across(Accumulator<T>* to, const T* from, int64_t stride, int64_t lines, int64_t extent, int64_t depth) {
  for (int64_t line = 0; line < divided_up(lines, kWidth) * kWidth; ++line)
    for (int64_t p = 0; p < depth; ++p)
      to[line / kWidth * kWidth * depth + p * kWidth + line % kWidth] =
          line < extent ? static_cast<Accumulator<T>>(from[line * stride + p]) : Accumulator<T>{0};
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

// One panel. The last group of lines comes first: where the width is no multiple of a group it spills into the next
// depth, whose own lines are written after it.
template <int64_t kWidth, typename T>
void pack_panel_across(Accumulator<T>* to, const T* from, int64_t stride, int64_t extent, int64_t depth) {
  constexpr int64_t kGroup = 16 / sizeof(Accumulator<T>), kGroups = (kWidth + kGroup - 1) / kGroup;
  const int64_t n = lanes_of<T>();
  for (int64_t p = 0; p < depth; p += n) {
    const int64_t here = std::min(n, depth - p);
    for (int64_t group = (kGroups - 1) * kGroup; group >= 0; group -= kGroup) {
      const T* rows = from + group * stride + p;
      if (here == n && extent - group >= kGroup) {
        auto line = [&](int i) HWY_ATTR {
          hwy::Prefetch(rows + i * stride + 4 * n);  // of so many lines at once the processor foresees none
          return load_lanes(rows + i * stride);
        };
        transpose_lines(line, to + p * kWidth + group, kWidth, n);
      } else {
        auto line = [&](int i) HWY_ATTR {
          if (i >= extent - group) return hn::Zero(Tag<T>());
          return Part{static_cast<size_t>(here)}.load(rows + i * stride);
        };
        transpose_lines(line, to + p * kWidth + group, kWidth, here);
      }
    }
  }
}

// Lines are rows of memory: from[line·stride + p]; `extent` lines may be read.
template <int64_t kWidth, typename T>
void pack_across(Accumulator<T>* to, const T* from, int64_t stride, int64_t lines, int64_t extent, int64_t depth) {
  for (int64_t line = 0; line < lines; line += kWidth)
    pack_panel_across<kWidth>(to + line * depth, from + line * stride, stride, extent - line, depth);
}
#endif

}  // namespace esp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
