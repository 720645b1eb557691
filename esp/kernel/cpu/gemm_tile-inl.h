// The two ends of a gemm tile: multiply_panels fills it from packed panels, finish_tile brings it into C.
//
// A tile is kTileRows × kTileVectors vectors of sums that stay in registers over the whole depth: every element is
// one chain of multiply-adds in the order of p. Then it passes through a small buffer, so that C's edges, the scaling
// and the epilogue need no code of their own per tile shape.
#if defined(ESP_KERNEL_CPU_GEMM_TILE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ESP_KERNEL_CPU_GEMM_TILE_INL_H
#undef ESP_KERNEL_CPU_GEMM_TILE_INL_H
#else
#define ESP_KERNEL_CPU_GEMM_TILE_INL_H
#endif

#include "esp/kernel/cpu/activation-inl.h"
#include "esp/kernel/cpu/elements-inl.h"
#include "esp/kernel/gemm.h"

#ifndef ESP_UNROLLED
#ifdef __clang__
#define ESP_UNROLLED _Pragma("unroll")
#else
#define ESP_UNROLLED _Pragma("GCC unroll 16")
#endif
#endif

HWY_BEFORE_NAMESPACE();
namespace esp::kernel::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// As many sums as the registers hold beside one row of B and one element of A.
#if HWY_ARCH_X86 && HWY_TARGET > HWY_AVX3
inline constexpr int kTileRows = 6, kTileVectors = 2;  // 16 registers
#else
inline constexpr int kTileRows = 8, kTileVectors = 3;  // 32 registers
#endif
template <typename A>
inline constexpr int64_t kTileColumns = kTileVectors* static_cast<int64_t>(hn::MaxLanes(hn::ScalableTag<A>()));

// tile[i·kTileColumns + j] = Σp a[p·kTileRows + i] · b[p·kTileColumns + j] for the first kRows rows and kVectors
// vectors.
template <typename A, int kRows, int kVectors>
HWY_NOINLINE void multiply_panels(const A* HWY_RESTRICT a, const A* HWY_RESTRICT b, int64_t depth,
                                  A* HWY_RESTRICT tile) {
  const hn::ScalableTag<A> d;
  constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(hn::ScalableTag<A>()));
  hn::Vec<decltype(d)> sums[kRows][kVectors];
  ESP_UNROLLED for (int i = 0; i < kRows; ++i) {
    ESP_UNROLLED for (int j = 0; j < kVectors; ++j) sums[i][j] = hn::Zero(d);
  }
  for (int64_t p = 0; p < depth; ++p) {
    hn::Vec<decltype(d)> row[kVectors];
    ESP_UNROLLED for (int j = 0; j < kVectors; ++j) row[j] = hn::Load(d, b + j * kLanes);
    ESP_UNROLLED for (int i = 0; i < kRows; ++i) {
      const auto element = hn::Set(d, a[i]);
      ESP_UNROLLED for (int j = 0; j < kVectors; ++j) sums[i][j] = hn::MulAdd(element, row[j], sums[i][j]);
    }
    a += kTileRows;
    b += kTileColumns<A>;
  }
  ESP_UNROLLED for (int i = 0; i < kRows; ++i) {
    ESP_UNROLLED for (int j = 0; j < kVectors; ++j) hn::Store(sums[i][j], d, tile + i * kTileColumns<A> + j * kLanes);
  }
}

template <typename A, int kRows>
HWY_INLINE void multiply_some_columns(const A* a, const A* b, int64_t depth, int64_t columns, A* tile) {
  constexpr int64_t kLanes = kTileColumns<A> / kTileVectors;
  if (kTileVectors > 2 && columns > 2 * kLanes) return multiply_panels<A, kRows, kTileVectors>(a, b, depth, tile);
  if (columns > kLanes) return multiply_panels<A, kRows, 2>(a, b, depth, tile);
  multiply_panels<A, kRows, 1>(a, b, depth, tile);
}

// A tile at the edge computes few more rows than it needs; those are never looked at.
template <typename A>
HWY_INLINE void multiply_tile(const A* a, const A* b, int64_t depth, int64_t rows, int64_t columns, A* tile) {
  if (rows > 4) return multiply_some_columns<A, kTileRows>(a, b, depth, columns, tile);
  if (rows > 2) return multiply_some_columns<A, 4>(a, b, depth, columns, tile);
  if (rows > 1) return multiply_some_columns<A, 2>(a, b, depth, columns, tile);
  multiply_some_columns<A, 1>(a, b, depth, columns, tile);
}

// What becomes of a tile. Sums of the depths so far are kept in `partial` between the first and the last piece of K: C
// itself, or scratch where C cannot hold them (16 bits) or is still needed (a slope that may not touch beta·C).
template <typename T>
struct Finish {
  using A = Accumulator<T>;
  A alpha, beta;
  bool first, last;         // of the pieces of K
  bool beta_first;          // beta·C joins with the first piece, as it must where C holds the partial sums
  T* c;                     // like the pointers below, at the tile's (0, 0)
  A* partial;               // null where there is one piece only
  const T* bias = nullptr;  // at the tile's column
  T* pre_activation = nullptr;
  const T* pre_activation_in = nullptr;
  int64_t c_stride, partial_stride;
};

// `finish` for the tile `row` rows and `column` columns away.
template <typename T>
HWY_INLINE Finish<T> moved(Finish<T> finish, int64_t row, int64_t column) {
  const int64_t by = row * finish.c_stride + column;
  finish.c += by;
  if (finish.partial) finish.partial += row * finish.partial_stride + column;
  if (finish.bias) finish.bias += column;
  if (finish.pre_activation) finish.pre_activation += by;
  if (finish.pre_activation_in) finish.pre_activation_in += by;
  return finish;
}

template <Activation activation, typename T, class L>
HWY_INLINE void finish_vector(const Finish<T>& f, L lanes, Vec<T> sum, int64_t at_c, int64_t at_partial, int64_t j) {
  const Tag<T> d;
  auto value = hn::Mul(hn::Set(d, f.alpha), sum);
  auto with_c = [&](Vec<T> v)
                    HWY_ATTR { return f.beta == 0 ? v : hn::MulAdd(hn::Set(d, f.beta), lanes.load(f.c + at_c), v); };
  if (!f.first) value = hn::Add(lanes.load(f.partial + at_partial), value);
  if (!f.last) return lanes.store(f.first && f.beta_first ? with_c(value) : value, f.partial + at_partial);
  const bool c_is_due = !f.beta_first || f.first;
  if (f.pre_activation_in) {
    value = hn::Mul(value, activation_slope_lanes<activation>(d, lanes.load(f.pre_activation_in + at_c)));
    return lanes.store(c_is_due ? with_c(value) : value, f.c + at_c);
  }
  if (c_is_due) value = with_c(value);
  if (f.bias) value = hn::Add(value, lanes.load(f.bias + j));
  if (f.pre_activation) lanes.store(value, f.pre_activation + at_c);
  lanes.store(activated_lanes<activation>(d, value), f.c + at_c);
}

template <Activation activation, typename T>
HWY_NOINLINE void finish_tile(const Finish<T>& f, const Accumulator<T>* tile, int64_t tile_stride, int64_t rows,
                              int64_t columns) {
  for (int64_t i = 0; i < rows; ++i) {
    const auto* from = tile + i * tile_stride;
    each_vector<T>(columns, [&](auto lanes, int64_t j) HWY_ATTR {
      finish_vector<activation>(f, lanes, lanes.load(from + j), i * f.c_stride + j, i * f.partial_stride + j, j);
    });
  }
}

}  // namespace esp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
