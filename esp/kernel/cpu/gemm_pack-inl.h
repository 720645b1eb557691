// Packing for gemm. Here a "line" is a row of op(A) or a column of op(B), and a "depth" is an index along K. A panel
// holds kWidth neighbouring lines, stored depth by depth: panel[p·kWidth + line]. Panels follow each other,
// kWidth·(number of depths) elements apart. Packing widens 16-bit elements, transposes if needed, and fills lines past
// the end with zeros. It writes only inside its panels, so threads may split the panels.
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

// Packs eight K indices of a panel that holds six lines (rows of op(A) or columns of op(B)); the panel part is three
// cache lines. The source stores the six elements of a K index next to each other. Each store writes a whole vector,
// and the next store overwrites the excess. Panels are far apart in memory, so stores that wait for cache lines cost
// more than the loads.
template <typename T>
HWY_INLINE void copy_eight_rows_of_six(Accumulator<T>* to, const T* from, int64_t stride, int64_t to_later_panel) {
  for (int64_t i = 0; i < 48; i += 16) hwy::Prefetch(to + to_later_panel + i);
  for (int64_t row = 0; row < 7; ++row) store_lanes(load_lanes(from + row * stride), to + row * 6);
  copy_lines<6>(to + 7 * 6, from + 7 * stride, 8);
}

// Packs lines (rows of op(A) or columns of op(B)) that lie side by side in memory: from[p·stride + l] is element p of
// line l. `extent` elements of each memory row may be read. Reads a few memory rows at a time, so that whole cache
// lines of a panel are written.
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
// Packs lines (rows of op(A) or columns of op(B)) that are contiguous in memory: element p of line l is from[l·stride +
// p]. `extent` lines may be read.
template <int64_t kWidth, typename T>
void pack_across(Accumulator<T>* to, const T* from, int64_t stride, int64_t lines, int64_t extent, int64_t depth) {
  for (int64_t line = 0; line < div_up(lines, kWidth) * kWidth; ++line)
    for (int64_t p = 0; p < depth; ++p)
      to[line / kWidth * kWidth * depth + p * kWidth + line % kWidth] =
          line < extent ? static_cast<Accumulator<T>>(from[line * stride + p]) : Accumulator<T>{0};
}
#else
// Stores the first `count` 128-bit blocks of v, or their lower halves, `step` elements apart.
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

// Stores pairs of 128-bit blocks, one from each vector, `step` elements apart.
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

// A group of kGroup lines (rows of op(A) or columns of op(B)), as many as a 128-bit block has elements. It is
// transposed block by block: block b of v[i] holds K index b·kGroup + i of all lines of the group.
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

// Packs two complete groups of lines (rows of op(A) or columns of op(B)), for as many K indices as a vector has lanes.
template <int64_t kWidth, typename T>
HWY_INLINE void pack_two_groups(Accumulator<T>* to, const T* rows, int64_t stride) {
  constexpr int64_t kLines = kGroup<Accumulator<T>>;
  auto line = [&](int64_t i) HWY_ATTR {
    hwy::Prefetch(rows + i * stride + 4 * lanes_of<T>());  // more streams than the hardware prefetcher can follow
    return load_lanes(rows + i * stride);
  };
  const auto left = transposed<T>(line);
  const auto right = transposed<T>([&](int64_t i) HWY_ATTR { return line(kLines + i); });
  for (int64_t i = 0; i < kLines; ++i)
    store_block_pairs(Tag<T>(), left.v[i], right.v[i], to + i * kWidth, kLines * kWidth);
}

// Packs one group of lines (rows of op(A) or columns of op(B)), or half of a group, for at most as many K indices as a
// vector has lanes. `extent` lines may be read.
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

// Packs eight K indices of six lines (rows of op(A) or columns of op(B)). Combines pairs of lines, then pairs of K
// indices, into whole vectors.
template <typename T>
HWY_INLINE void pack_six_lines(Accumulator<T>* to, const T* rows, int64_t stride) {
  const Tag<T> d;
  const hn::RepartitionToWide<Tag<T>> pairs;
  auto line = [&](int64_t i) HWY_ATTR {
    hwy::Prefetch(rows + (6 + i) * stride);  // prefetches the next panel
    return load_lanes(rows + i * stride);
  };
  const auto v0 = line(0), v1 = line(1), v2 = line(2), v3 = line(3), v4 = line(4), v5 = line(5);
  // Three vectors: each vector half holds a 128-bit block, and three blocks hold two K indices of the six lines. The
  // lower halves hold K indices 0 and 1 (or 2 and 3), the upper halves hold K indices 4 and 5 (or 6 and 7).
  struct DepthPairs {
    Vec<T> first, second, third;
  };
  auto blocks = [&](Vec<T> v01, Vec<T> v23, Vec<T> v45) HWY_ATTR {
    const auto x01 = hn::BitCast(pairs, v01), x23 = hn::BitCast(pairs, v23), x45 = hn::BitCast(pairs, v45);
    return DepthPairs{hn::BitCast(d, hn::InterleaveLower(pairs, x01, x23)), hn::BitCast(d, hn::OddEven(x01, x45)),
                      hn::BitCast(d, hn::InterleaveUpper(pairs, x23, x45))};
  };
  const DepthPairs x =
      blocks(hn::InterleaveLower(d, v0, v1), hn::InterleaveLower(d, v2, v3), hn::InterleaveLower(d, v4, v5));
  const DepthPairs y =
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

// Packs lines (rows of op(A) or columns of op(B)) that are contiguous in memory: element p of line l is from[l·stride +
// p]. `extent` lines may be read.
template <int64_t kWidth, typename T>
void pack_across(Accumulator<T>* to, const T* from, int64_t stride, int64_t lines, int64_t extent, int64_t depth) {
  for (int64_t line = 0; line < lines; line += kWidth)
    pack_panel_across<kWidth>(to + line * depth, from + line * stride, stride, extent - line, depth);
}
#endif

}  // namespace esp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // included once per instruction set
