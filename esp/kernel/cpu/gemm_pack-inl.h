// Packing for gemm: a panel is kWidth neighbouring rows of op(A), or columns of op(B), depth by depth:
// panel[p·kWidth + line]. Panels follow each other, kWidth·depth apart. 16-bit elements are widened here, transposes
// happen here, and lines past the end are zero. Nothing is written outside the panels: threads may share them out.
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

// Eight rows of memory of a panel six lines wide, three cache lines: whole vectors, each stored over the end of the one
// before. The panel's neighbours are far apart, and stores that wait for them cost more than the loads.
template <typename T>
HWY_INLINE void copy_eight_rows_of_six(Accumulator<T>* to, const T* from, int64_t stride, int64_t to_later_panel) {
  for (int64_t i = 0; i < 48; i += 16) hwy::Prefetch(to + to_later_panel + i);
  for (int64_t row = 0; row < 7; ++row) store_lanes(load_lanes(from + row * stride), to + row * 6);
  copy_lines<6>(to + 7 * 6, from + 7 * stride, 8);
}

// Lines are neighbours in memory: from[p·stride + line]; `extent` of each row may be read. Rows of memory are read
// through, a few at a time, so that what a panel gets at once is whole cache lines.
template <int64_t kWidth, typename T>
void pack_along(Accumulator<T>* to, const T* from, int64_t stride, int64_t lines, int64_t extent, int64_t depth) {
  constexpr bool kInSixes = kWidth == 6 && hn::MaxLanes(Tag<T>()) == 8;
  constexpr int64_t kRows = kInSixes ? 8 : 4, kPanelsAhead = 8;
  for (int64_t p = 0; p < depth; p += kRows) {
    const int64_t rows = std::min(kRows, depth - p);
    for (int64_t line = 0; line < lines; line += kWidth) {
      Accumulator<T>* panel = to + line * depth + p * kWidth;
      if constexpr (kInSixes) {
        if (rows == kRows && line + 8 <= extent) {
          copy_eight_rows_of_six(panel, from + p * stride + line, stride, kPanelsAhead * kWidth * depth);
          continue;
        }
      }
      for (int64_t row = 0; row < rows; ++row) {
        const T* here = from + (p + row) * stride + line;
        for (int64_t i = 0; i < kWidth; i += 64 / static_cast<int64_t>(sizeof(T)))
          hwy::Prefetch(here + 2 * kRows * stride + i);
        copy_lines<kWidth>(panel + row * kWidth, here, extent - line);
      }
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
// Stores the 128-bit blocks of v, or their lower halves, `step` apart, the first `count` of them.
template <bool kHalves, class D, class V, typename A>
HWY_INLINE void store_blocks(D d, V v, A* to, int64_t step, int64_t count) {
  if constexpr (hn::MaxLanes(D()) * sizeof(A) == 16) {
    const hn::Half<D> half;
    if (count <= 0) return;
    if constexpr (kHalves)
      hn::StoreU(hn::LowerHalf(half, v), half, to);
    else
      hn::StoreU(v, d, to);
  } else {
    const hn::Half<D> half;
    constexpr int64_t kBelow = static_cast<int64_t>(hn::MaxLanes(D()) * sizeof(A) / 32);
    store_blocks<kHalves>(half, hn::LowerHalf(half, v), to, step, count);
    store_blocks<kHalves>(half, hn::UpperHalf(half, v), to + kBelow * step, step, count - kBelow);
  }
}

// Stores the 128-bit blocks of two vectors side by side, `step` apart.
template <class D, class V, typename A>
HWY_INLINE void store_block_pairs(D d, V left, V right, A* to, int64_t step) {
  if constexpr (hn::MaxLanes(D()) * sizeof(A) == 32) {
    hn::StoreU(hn::ConcatLowerLower(d, right, left), d, to);
    hn::StoreU(hn::ConcatUpperUpper(d, right, left), d, to + step);
  } else {
    const hn::Half<D> half;
    constexpr int64_t kBelow = static_cast<int64_t>(hn::MaxLanes(D()) * sizeof(A) / 32);
    store_block_pairs(half, hn::LowerHalf(half, left), hn::LowerHalf(half, right), to, step);
    store_block_pairs(half, hn::UpperHalf(half, left), hn::UpperHalf(half, right), to + kBelow * step, step);
  }
}

// As many lines as a 128-bit block holds elements, transposed block by block: block b of v[i] is depth b·kGroup + i.
template <typename A>
inline constexpr int64_t kGroup = 16 / sizeof(A);
template <typename T>
struct Transposed {
  Vec<T> v[kGroup<Accumulator<T>>];
};
template <typename T, class LoadLine>
HWY_INLINE Transposed<T> transposed(LoadLine line) {
  const Tag<T> d;
  const auto v0 = line(0), v1 = line(1);
  if constexpr (sizeof(Accumulator<T>) == 8) {
    return {{hn::InterleaveLower(d, v0, v1), hn::InterleaveUpper(d, v0, v1)}};
  } else {
    const hn::RepartitionToWide<Tag<T>> pairs;
    const auto v2 = line(2), v3 = line(3);
    const auto low01 = hn::BitCast(pairs, hn::InterleaveLower(d, v0, v1));
    const auto high01 = hn::BitCast(pairs, hn::InterleaveUpper(d, v0, v1));
    const auto low23 = hn::BitCast(pairs, hn::InterleaveLower(d, v2, v3));
    const auto high23 = hn::BitCast(pairs, hn::InterleaveUpper(d, v2, v3));
    return {{hn::BitCast(d, hn::InterleaveLower(pairs, low01, low23)),
             hn::BitCast(d, hn::InterleaveUpper(pairs, low01, low23)),
             hn::BitCast(d, hn::InterleaveLower(pairs, high01, high23)),
             hn::BitCast(d, hn::InterleaveUpper(pairs, high01, high23))}};
  }
}

// Two whole groups of lines over one vector of depths.
template <int64_t kWidth, typename T>
HWY_INLINE void pack_two_groups(Accumulator<T>* to, const T* rows, int64_t stride) {
  constexpr int64_t kLines = kGroup<Accumulator<T>>;
  auto line = [&](int64_t i) HWY_ATTR {
    hwy::Prefetch(rows + i * stride + 4 * lanes_of<T>());  // of so many lines at once the processor foresees none
    return load_lanes(rows + i * stride);
  };
  const auto left = transposed<T>(line);
  const auto right = transposed<T>([&](int64_t i) HWY_ATTR { return line(kLines + i); });
  for (int64_t i = 0; i < kLines; ++i)
    store_block_pairs(Tag<T>(), left.v[i], right.v[i], to + i * kWidth, kLines * kWidth);
}

// One group of lines, or half a group, over `depth` depths, a vector of them or fewer; `extent` lines may be read.
template <int64_t kWidth, bool kHalf, typename T>
HWY_INLINE void pack_group(Accumulator<T>* to, const T* rows, int64_t stride, int64_t extent, int64_t depth) {
  constexpr int64_t kLines = kGroup<Accumulator<T>>;
  const bool whole = depth == lanes_of<T>();
  const auto block = transposed<T>([&](int64_t i) HWY_ATTR {
    if (i >= extent) return hn::Zero(Tag<T>());
    return whole ? load_lanes(rows + i * stride) : PartialVector{static_cast<size_t>(depth)}.load(rows + i * stride);
  });
  for (int64_t i = 0; i < kLines; ++i)
    store_blocks<kHalf>(Tag<T>(), block.v[i], to + i * kWidth, kLines * kWidth, (depth + kLines - 1 - i) / kLines);
}

// Six whole lines over eight depths: pairs of lines, then pairs of depths, make whole vectors.
template <typename T>
HWY_INLINE void pack_six_lines(Accumulator<T>* to, const T* rows, int64_t stride) {
  const Tag<T> d;
  const hn::RepartitionToWide<Tag<T>> pairs;
  auto line = [&](int64_t i) HWY_ATTR {
    hwy::Prefetch(rows + (6 + i) * stride);  // the next panel
    return load_lanes(rows + i * stride);
  };
  const auto v0 = line(0), v1 = line(1), v2 = line(2), v3 = line(3), v4 = line(4), v5 = line(5);
  // Two depths of six lines, three 128-bit blocks: in the lower halves depths 0 and 1, or 2 and 3, above them 4 later.
  struct Blocks {
    Vec<T> first, second, third;
  };
  auto blocks = [&](Vec<T> v01, Vec<T> v23, Vec<T> v45) HWY_ATTR {
    const auto x01 = hn::BitCast(pairs, v01), x23 = hn::BitCast(pairs, v23), x45 = hn::BitCast(pairs, v45);
    return Blocks{hn::BitCast(d, hn::InterleaveLower(pairs, x01, x23)), hn::BitCast(d, hn::OddEven(x01, x45)),
                  hn::BitCast(d, hn::InterleaveUpper(pairs, x23, x45))};
  };
  const Blocks x =
      blocks(hn::InterleaveLower(d, v0, v1), hn::InterleaveLower(d, v2, v3), hn::InterleaveLower(d, v4, v5));
  const Blocks y =
      blocks(hn::InterleaveUpper(d, v0, v1), hn::InterleaveUpper(d, v2, v3), hn::InterleaveUpper(d, v4, v5));
  hn::StoreU(hn::ConcatLowerLower(d, x.second, x.first), d, to);
  hn::StoreU(hn::ConcatLowerLower(d, y.first, x.third), d, to + 8);
  hn::StoreU(hn::ConcatLowerLower(d, y.third, y.second), d, to + 16);
  hn::StoreU(hn::ConcatUpperUpper(d, x.second, x.first), d, to + 24);
  hn::StoreU(hn::ConcatUpperUpper(d, y.first, x.third), d, to + 32);
  hn::StoreU(hn::ConcatUpperUpper(d, y.third, y.second), d, to + 40);
}

template <int64_t kWidth, typename T>
void pack_panel_across(Accumulator<T>* to, const T* from, int64_t stride, int64_t extent, int64_t depth) {
  constexpr int64_t kLines = kGroup<Accumulator<T>>, kLanes = static_cast<int64_t>(hn::MaxLanes(Tag<T>()));
  constexpr bool kInPairs = kWidth % (2 * kLines) == 0 && kLanes >= 2 * kLines;
  for (int64_t p = 0; p < depth; p += kLanes) {
    const int64_t here = std::min(kLanes, depth - p);
    if constexpr (kInPairs) {
      if (here == kLanes && extent >= kWidth) {
        for (int64_t group = 0; group < kWidth; group += 2 * kLines)
          pack_two_groups<kWidth>(to + p * kWidth + group, from + group * stride + p, stride);
        continue;
      }
    }
    if constexpr (kWidth == 6 && kLanes == 8) {
      if (here == kLanes && extent >= kWidth) {
        pack_six_lines(to + p * kWidth, from + p, stride);
        continue;
      }
    }
    int64_t group = 0;
    for (; group + kLines <= kWidth; group += kLines)
      pack_group<kWidth, false>(to + p * kWidth + group, from + group * stride + p, stride, extent - group, here);
    if constexpr (kWidth % kLines != 0) {
      static_assert(kWidth % kLines * 2 == kLines);
      pack_group<kWidth, true>(to + p * kWidth + group, from + group * stride + p, stride, extent - group, here);
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
